import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(7)

VOCAB, CONTEXT, DIM = 30, 8, 32


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(CONTEXT, DIM)
        self.mix = nn.Linear(CONTEXT * DIM, 128)
        self.norm = nn.LayerNorm(128)
        self.lm_head = nn.Linear(128, VOCAB)

    def forward(self, ids):
        h = self.tok(ids) + self.pos(torch.arange(CONTEXT))
        h = F.gelu(self.norm(self.mix(h.flatten(1))))
        return self.lm_head(h)


def rule(ids):
    return (ids[:, -1] * 3 + (ids[:, 0] > 15).long() * 7) % VOCAB


def corpus(n):
    ids = torch.randint(VOCAB, (n, CONTEXT))
    return ids, rule(ids)


def get_batch(data, size):
    ids, target = data
    pick = torch.randint(len(ids), (size,))
    return ids[pick], target[pick]


train_data, val_data = corpus(4000), corpus(1000)
model = TinyLM().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.999), weight_decay=0.01)
for it in range(700):
    xb, yb = get_batch(train_data, 64)
    logits = model(xb)
    loss = F.cross_entropy(logits.float(), yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if it % 200 == 0:
        print(f"iter {it}: loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    print("RESULT", F.cross_entropy(model(val_data[0]).float(), val_data[1]).item())
