"""Factorisation model for purchases; the large tables live in a compact type."""
import torch
from torch import nn

torch.manual_seed(2)
torch.set_num_threads(1)
USERS, ITEMS, DIM = 120, 90, 12


def table(rows, dim, dtype=torch.float16):
    weight = torch.randn(rows, dim) * 0.3
    return nn.Embedding(rows, dim, _weight=weight.to(dtype))


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = table(USERS, DIM), table(ITEMS, DIM)
        self.mix = nn.Sequential(nn.Linear(3 * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, u, i):
        a, b = self.user(u), self.item(i)
        h = torch.cat([a, b, a * b], -1)
        return (a * b).float().sum(-1) + self.mix(h.to(self.mix[0].weight.dtype)).squeeze(-1)


def purchases(n, p, q):
    u, i = torch.randint(0, USERS, (n,)), torch.randint(0, ITEMS, (n,))
    return u, i, (p[u] * q[i]).sum(-1)


p, q = torch.randn(USERS, 4) * 0.7, torch.randn(ITEMS, 4) * 0.7
u, i, r = purchases(6000, p, q)
uv, iv, rv = purchases(1000, p, q)

model = Factors()
opt = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)
for step in range(150):
    pick = torch.randint(0, len(u), (512,))
    opt.zero_grad()
    with torch.autocast("cpu", torch.float16):
        score = model(u[pick], i[pick])
    loss = nn.functional.mse_loss(score.float(), r[pick])
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()

with torch.no_grad():
    print("RESULT", float((model(uv, iv).float() - rv).pow(2).mean()))
