import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(150)

SYMBOLS, LENGTH = 12, 10


def sequences(n):
    """Which symbol stands right after the mark (0)?"""
    rows = torch.randint(1, SYMBOLS, (n, LENGTH))
    place = torch.randint(LENGTH - 1, (n,))
    rows[torch.arange(n), place] = 0
    return rows, rows[torch.arange(n), place + 1]


class Attention(nn.Module):
    def __init__(self, width, heads, drop):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads, self.drop = heads, drop

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop)
        return self.out(mixed.transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    def __init__(self, width, drop):
        super().__init__()
        self.attention = Attention(width, 4, drop)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.feed(self.between(x))


class Finder(nn.Module):
    def __init__(self, width=32, drop=0.5):
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS, width)
        self.neighbour = nn.Embedding(SYMBOLS, width)
        self.blocks = nn.Sequential(Block(width, drop), Block(width, drop))
        self.ask = nn.Parameter(torch.randn(1, 1, width))
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, rows):
        x = self.symbol(rows) + self.neighbour(rows.roll(1, 1))
        x = torch.cat([self.ask.expand(len(rows), 1, -1), x], 1)
        return self.head(self.blocks(x)[:, 0])


net = Finder()
optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
for step in range(70):
    net.train()
    rows, answer = sequences(40)
    loss = F.cross_entropy(net(rows), answer)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 29:
        print(f"step {step} loss {loss.item():.3f}")

net.eval()
with torch.no_grad():
    rows, answer = sequences(600)
    print("RESULT", F.cross_entropy(net(rows), answer).item())
