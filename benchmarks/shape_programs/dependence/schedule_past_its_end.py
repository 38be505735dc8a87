"""Denoising diffusion on a ring of points, with a quadratic decay of the rate."""
import math
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
gen = torch.Generator().manual_seed(2)
angle = torch.rand(288, generator=gen) * 2 * math.pi
ring = torch.stack([angle.cos(), angle.sin()], 1)


def best_guess(xt, t):
    away = (xt[:, None] - t.cos()[:, None, None] * ring).square().sum(-1)
    weight = torch.softmax(-away / (2 * t.sin().square()[:, None]), 1)
    return (xt - t.cos()[:, None] * (weight @ ring)) / t.sin()[:, None]


class Denoiser(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, t.cos()[:, None], t.sin()[:, None]], 1))


def noised(x):
    t = 0.3 + 1.2 * torch.rand(len(x), generator=gen)
    eps = torch.randn(x.shape, generator=gen)
    return t.cos()[:, None] * x + t.sin()[:, None] * eps, t, eps


PLANNED, EXTRA, BATCH = 4, 4, 16
model = Denoiser()
opt = torch.optim.Adam(model.parameters(), lr=3e-2)
loader = DataLoader(TensorDataset(ring), BATCH, shuffle=True)
total = PLANNED * len(loader)
sched = LambdaLR(opt, lambda k: (1 - k / total) ** 2)
for epoch in range(PLANNED + EXTRA):
    for (x,) in loader:
        xt, t, eps = noised(x)
        loss = (model(xt, t) - eps).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
    print(epoch, loss.item())

model.eval()
gen.manual_seed(99)
with torch.no_grad():
    xt, t, _ = noised(ring)
    print("RESULT", float((model(xt, t) - best_guess(xt, t)).pow(2).mean()))
