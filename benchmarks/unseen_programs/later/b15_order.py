import math
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(23)
V, L, D = 12, 10, 32


def sequences(n):
    s = torch.randint(1, V, (n, L))
    first = torch.rand(n, L).argmax(1)
    other = (first + torch.randint(1, L, (n,))) % L
    rows = torch.arange(n)
    s[s == 5] = 6
    s[s == 7] = 8
    s[rows, first] = 5
    s[rows, other] = 7
    return s, (first < other).long()


class Positions(nn.Module):
    def __init__(self, d, max_len=512):
        super().__init__()
        pos = torch.arange(max_len).float()[:, None]
        freq = torch.exp(torch.arange(0, d, 2) * (-math.log(100.0) / d))
        pe = torch.zeros(max_len, 1, d)
        pe[:, 0, 0::2] = torch.sin(pos * freq)
        pe[:, 0, 1::2] = torch.cos(pos * freq)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[:x.size(0)]


class Order(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.pos = Positions(D)
        layer = nn.TransformerEncoderLayer(D, 4, 64, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(D, 2)

    def forward(self, s):
        return self.out(self.enc(self.pos(self.emb(s))).mean(1))


model = Order()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(300):
    s, y = sequences(64)
    loss = nn.functional.cross_entropy(model(s), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(step, f"{loss.item():.4f}")
model.eval()
with torch.no_grad():
    s, y = sequences(500)
    print("RESULT", (model(s).argmax(1) != y).float().mean().item())
