import math
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
cfg = SimpleNamespace(lr=3e-3, warmup=20, steps=300, batch=64, width=64, classes=5, seed=21)


def spirals(n, rng):
    y = rng.integers(0, cfg.classes, n)
    r = rng.uniform(0.2, 1.0, n)
    a = 2 * math.pi * y / cfg.classes + 3.0 * r + rng.normal(0, 0.08, n)
    x = np.stack([r * np.cos(a), r * np.sin(a)], 1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


class FourierMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("freq", torch.randn(2, 16) * 1.5)
        self.net = nn.Sequential(
            nn.Linear(32, cfg.width), nn.GELU(), nn.LayerNorm(cfg.width),
            nn.Linear(cfg.width, cfg.width), nn.GELU(), nn.LayerNorm(cfg.width),
            nn.Linear(cfg.width, cfg.classes),
        )

    def forward(self, x):
        z = x @ self.freq
        return self.net(torch.cat([z.sin(), z.cos()], -1))


def lr_at(step):
    if step < cfg.warmup:
        return cfg.lr * (step + 1) / cfg.warmup
    progress = (step - cfg.warmup) / (cfg.steps - cfg.warmup)
    return cfg.lr * 0.5 * (1.0 + math.cos(math.pi * progress))


def batches(x, y, rng):
    while True:
        order = rng.permutation(len(x))
        for i in range(0, len(order) - cfg.batch + 1, cfg.batch):
            idx = torch.from_numpy(order[i:i + cfg.batch])
            yield x[idx], y[idx]


def run():
    rng = np.random.default_rng(cfg.seed)
    torch.manual_seed(cfg.seed)
    xtr, ytr = spirals(2000, rng)
    xva, yva = spirals(500, rng)
    model = FourierMLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_at)
    stream = batches(xtr, ytr, rng)
    for step in range(cfg.steps):
        xb, yb = next(stream)
        loss = F.cross_entropy(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        err = (model(xva).argmax(-1) != yva).float().mean().item()
    print(f"RESULT {err:.4f}")


run()
