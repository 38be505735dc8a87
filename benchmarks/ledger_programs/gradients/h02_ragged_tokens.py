"""Sequence tagger; sequences of different lengths, several micro-batches per update."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
torch.set_num_threads(1)
VOCAB, TAGS, PAD = 20, 5, -100


def make(n):
    out = []
    for _ in range(n):
        L = int(torch.randint(4, 20, (1,)))
        x = torch.randint(1, VOCAB, (L,))
        y = (x + torch.cat([x.new_zeros(1), x[:-1]])) % TAGS
        out.append((x, y))
    return out


def collate(items):
    x = nn.utils.rnn.pad_sequence([a for a, _ in items], batch_first=True)
    y = nn.utils.rnn.pad_sequence([b for _, b in items], batch_first=True, padding_value=PAD)
    return x, y


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 24, padding_idx=0)
        self.rnn = nn.GRU(24, 48, batch_first=True)
        self.out = nn.Linear(48, TAGS)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


train, val = make(420), make(100)
model = Tagger()
opt = torch.optim.AdamW(model.parameters(), lr=8e-3)
ACC, BS = 4, 15

for epoch in range(10):
    order = torch.randperm(len(train)).tolist()
    batches = [collate([train[i] for i in order[k:k + BS]]) for k in range(0, len(order), BS)]
    batches = batches[:26] if epoch % 2 else batches
    for start in range(0, len(batches), ACC):
        window = batches[start:start + ACC]
        n_tokens = sum(int((y != PAD).sum()) for _, y in window)
        for x, y in window:
            logits = model(x)
            loss = F.cross_entropy(logits.transpose(1, 2), y, ignore_index=PAD, reduction="sum") / n_tokens
            if x is window[0][0]:
                opt.zero_grad()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    if epoch % 3 == 0:
        print(f"epoch {epoch} last micro loss {loss.item():.4f}")

model.eval()
xv, yv = collate(val)
with torch.no_grad():
    print(f"result: {F.cross_entropy(model(xv).transpose(1, 2), yv, ignore_index=PAD).item():.4f}")
