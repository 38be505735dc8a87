"""Positive or negative product reviews, with a GPT-style block and a summary token."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(71)

VOCAB, T, D, HEADS = 300, 20, 32, 4
SUMMARY = VOCAB


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv = nn.Linear(D, 3 * D)
        self.proj = nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, HEADS, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, D))
        return x + self.mlp(self.ln2(x))


class ReviewModel(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB + 1, D)
        self.pos = nn.Embedding(T + 1, D)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.ln = nn.LayerNorm(D)
        self.head = nn.Linear(D, 2)

    def forward(self, ids):
        summary = torch.full((len(ids), 1), SUMMARY)
        ids = torch.cat([summary, ids], 1)
        x = self.tok(ids) + self.pos(torch.arange(T + 1))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x[:, 0]))


def reviews(n):
    y = torch.randint(0, 2, (n,))
    ids = torch.randint(60, VOCAB, (n, T))
    opinion = torch.randint(0, 30, (n, T)) + 30 * y[:, None]
    return torch.where(torch.rand(n, T) < 0.2, opinion, ids), y


x, y = reviews(1200)
xv, yv = reviews(400)
model = ReviewModel()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(4):
    for i in torch.randperm(len(x)).split(40):
        loss = F.cross_entropy(model(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        val = F.cross_entropy(model(xv), yv).item()
    print(f"epoch {epoch} train {loss.item():.4f} val {val:.4f}")
print("RESULT", val)
