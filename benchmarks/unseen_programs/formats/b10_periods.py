import math

import torch
from torch import nn

torch.set_num_threads(1)


class Harmonics(nn.Module):
    """Sine features; the first ones have calendar periods and stay as they are."""

    def __init__(self, known, extra):
        super().__init__()
        start = torch.cat([torch.tensor(known), torch.rand(extra) * 3])
        self.omega = nn.Parameter(start)
        self.phase = nn.Parameter(torch.rand(len(start)) * 2 * math.pi)
        adjustable = torch.ones(len(start))
        adjustable[: len(known)] = 0
        self.omega.register_hook(lambda g: g * adjustable)

    def forward(self, t):
        z = t[:, None] * self.omega
        return torch.cat([(z + self.phase).sin(), (z + self.phase).cos()], dim=1)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        known = [2 * math.pi / p for p in (1.0, 0.5, 7.0, 3.5)]
        self.time = Harmonics(known, extra=12)
        self.trunk = nn.Sequential(nn.Linear(32 + 2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.out = nn.Linear(64, 1)

    def forward(self, t, weather):
        return self.out(self.trunk(torch.cat([self.time(t), weather], dim=1)))[:, 0]


def sample(n, gen, lo, hi):
    t = torch.rand(n, generator=gen) * (hi - lo) + lo
    w = torch.randn(n, 2, generator=gen)
    day, week = 2 * math.pi * t, 2 * math.pi * t / 7
    y = day.sin() * (1 + 0.5 * week.cos()) + 0.4 * (2 * day).cos() + 0.5 * w[:, 0] + 0.3 * w[:, 1] * day.cos()
    return t, w, y + 0.05 * torch.randn(n, generator=gen)


def make_optimizer(model, lr, decay):
    matrices, vectors, clock = [], [], []
    for name, p in model.named_parameters():
        if name.startswith("time."):
            clock.append(p)
        elif p.ndim > 1:
            matrices.append(p)
        else:
            vectors.append(p)
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": decay},
            {"params": clock, "weight_decay": decay, "lr": lr / 2},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=lr,
    )


def main():
    torch.manual_seed(19)
    gen = torch.Generator().manual_seed(5)
    train = sample(4000, gen, 0.0, 56.0)
    val = sample(2000, gen, 0.0, 63.0)
    model = Forecaster()
    opt = make_optimizer(model, lr=4e-3, decay=0.05)
    for epoch in range(20):
        for idx in torch.randperm(4000, generator=gen).split(100):
            t, w, y = (v[idx] for v in train)
            loss = nn.functional.mse_loss(model(t, w), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        with torch.no_grad():
            error = nn.functional.mse_loss(model(*val[:2]), val[2]).item()
        if epoch % 4 == 3:
            print("epoch", epoch, "train", round(loss.item(), 4), "val", round(error, 4))
    print("RESULT", error)


main()
