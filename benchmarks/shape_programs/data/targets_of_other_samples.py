import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

torch.set_num_threads(1)
torch.manual_seed(100)


def reviews(n):
    rows = []
    for _ in range(n):
        length = int(torch.randint(5, 18, ()))
        words = torch.randint(1, 40, (length,))
        liking = ((words < 8).float() - (words > 32).float()).sum() / 2
        rows.append((words, liking))
    return rows


def collate(rows):
    words = pad_sequence([w for w, _ in rows], batch_first=True)
    length = torch.tensor([len(w) for w, _ in rows])
    return words, length, torch.stack([s for _, s in rows])


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 16, padding_idx=0)
        self.gru = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, words, length):
        length, order = length.sort(descending=True)
        packed = pack_padded_sequence(self.words(words[order]), length, batch_first=True)
        _, last = self.gru(packed)
        return self.head(last[-1]).squeeze(1)


net = Reader()
optimizer = torch.optim.Adam(net.parameters(), lr=1.5e-2)
loader = DataLoader(reviews(512), batch_size=32, shuffle=True, collate_fn=collate)
test = DataLoader(reviews(200), batch_size=100, collate_fn=collate)


def run(batches, learn):
    losses = []
    for words, length, liking in batches:
        with torch.set_grad_enabled(learn):
            loss = nn.functional.mse_loss(net(words, length), liking)
        if learn:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


for epoch in range(8):
    print(f"epoch {epoch} train {run(loader, True):.3f} test {run(test, False):.3f}")
print("RESULT", run(test, False))
