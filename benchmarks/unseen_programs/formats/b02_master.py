from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Config:
    seed: int = 5
    features: int = 24
    hidden: int = 32
    outputs: int = 6
    steps: int = 240
    batch: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    loss_scale: float = 512.0
    max_norm: float = 5.0


class World:
    """Noisy nonlinear sensor responses."""

    def __init__(self, cfg):
        g = torch.Generator().manual_seed(cfg.seed)
        self.a = torch.randn(cfg.features, 12, generator=g) / cfg.features**0.5
        self.b = torch.randn(12, cfg.outputs, generator=g)
        self.offset = torch.linspace(-2, 2, cfg.outputs)
        self.g = g
        self.n = cfg.features

    def draw(self, count):
        x = torch.randn(count, self.n, generator=self.g)
        y = torch.tanh(2 * x @ self.a) @ self.b + self.offset
        return x, y + 0.05 * torch.randn(y.shape, generator=self.g)


class MasterSGD:
    """Half weights for the network, float weights for the updates."""

    def __init__(self, model, cfg):
        self.half = [p for p in model.parameters()]
        self.full = [p.detach().float().clone() for p in self.half]
        self.velocity = [torch.zeros_like(p) for p in self.full]
        self.cfg = cfg

    def clip(self):
        total = torch.stack([p.grad.pow(2).sum() for p in self.half]).sum().sqrt()
        limit = self.cfg.max_norm * self.cfg.loss_scale
        factor = (limit / (total + 1e-3)).clamp(max=1.0)
        for p in self.half:
            p.grad.mul_(factor)
        return total

    @torch.no_grad()
    def step(self):
        self.clip()
        for p, w, v in zip(self.half, self.full, self.velocity):
            grad = p.grad.float() / self.cfg.loss_scale
            if not torch.isfinite(grad).all():
                continue
            v.mul_(self.cfg.momentum).add_(grad)
            w.sub_(v, alpha=self.cfg.lr)
            p.copy_(w)

    def zero(self):
        for p in self.half:
            p.grad = None


def build(cfg):
    return nn.Sequential(
        nn.Linear(cfg.features, cfg.hidden), nn.Tanh(),
        nn.Linear(cfg.hidden, cfg.hidden), nn.Tanh(),
        nn.Linear(cfg.hidden, cfg.outputs),
    )


def main(cfg):
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    world = World(cfg)
    val_x, val_y = world.draw(1000)
    model = build(cfg).half()
    opt = MasterSGD(model, cfg)
    for step in range(cfg.steps):
        x, y = world.draw(cfg.batch)
        loss = (model(x.half()).float() - y).square().mean()
        opt.zero()
        (loss * cfg.loss_scale).backward()
        opt.step()
        if step % 40 == 0:
            print(step, round(loss.item(), 4))
    with torch.no_grad():
        error = (model(val_x.half()).float() - val_y).square().mean().item()
    print("RESULT", error)


if __name__ == "__main__":
    main(Config())
