"""Friction coefficient from process data, half precision forward with an own dynamic scale."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


@dataclass
class Config:
    seed: int = 11
    features: int = 24
    width: int = 64
    batch: int = 64
    steps: int = 420
    lr: float = 0.06
    momentum: float = 0.8


class DynamicScale:
    def __init__(self, start=2.0 ** 12, window=40, grow=8.0, shrink=0.5):
        self.value = start
        self.window = window
        self.grow = grow
        self.shrink = shrink
        self.clean = 0

    def finite(self, params):
        return all(bool(torch.isfinite(p.grad).all()) for p in params if p.grad is not None)

    def unscale(self, params):
        for p in params:
            if p.grad is not None:
                p.grad.div_(self.value)

    def update(self, ok):
        if not ok:
            self.value *= self.shrink
            return
        self.clean += 1
        if self.clean >= self.window:
            self.value *= self.grow


class Regressor(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(cfg.features, cfg.width), nn.Tanh(),
            nn.Linear(cfg.width, cfg.width), nn.Tanh(),
        )
        self.out = nn.Linear(cfg.width, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


def make_data(cfg, n):
    x = torch.randn(n, cfg.features)
    y = torch.sin(x[:, 0] * 1.5) + 0.7 * x[:, 1] * x[:, 2] + 0.5 * x[:, 3] - 0.3 * x[:, 4:8].sum(1)
    return x, y + 0.05 * torch.randn(n)


def train(cfg):
    torch.manual_seed(cfg.seed)
    x, y = make_data(cfg, 4096)
    xv, yv = make_data(cfg, 1024)
    model = Regressor(cfg)
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=cfg.lr, momentum=cfg.momentum)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.steps, eta_min=cfg.lr * 0.1)
    scale = DynamicScale()
    for step in range(cfg.steps):
        idx = torch.randint(0, len(x), (cfg.batch,))
        with torch.autocast("cpu", torch.float16):
            pred = model(x[idx])
        loss = F.mse_loss(pred.float(), y[idx])
        opt.zero_grad()
        (loss * scale.value).backward()
        ok = scale.finite(params)
        if ok:
            scale.unscale(params)
            opt.step()
        scale.update(ok)
        sched.step()
        if step % 60 == 0:
            print(f"step {step:4d} loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        return F.mse_loss(model(xv), yv).item()


if __name__ == "__main__":
    print("RESULT", train(Config()))
