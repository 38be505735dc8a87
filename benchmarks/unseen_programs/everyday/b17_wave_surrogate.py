"""Fit a surrogate of a damped oscillator with a hand-written momentum optimizer."""
import math

import torch
import torch.nn as nn
from torch.optim import Optimizer

torch.set_num_threads(1)
torch.manual_seed(1717)


def oscillator(n):
    """Displacement of a damped oscillator as a function of (time, damping, frequency)."""
    t = torch.rand(n) * 3
    damping = 0.2 + 0.8 * torch.rand(n)
    omega = 1.0 + 2.0 * torch.rand(n)
    y = torch.exp(-damping * t) * torch.cos(omega * t)
    x = torch.stack([t / 1.5 - 1, (damping - 0.6) / 0.4, omega - 2], dim=1)
    return x, y.unsqueeze(1) + 0.01 * torch.randn(n, 1)


class NesterovSGD(Optimizer):
    """Momentum with look-ahead and decoupled weight decay."""

    def __init__(self, params, lr, momentum=0.9, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, mu, wd = group["lr"], group["momentum"], group["weight_decay"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(p)
                v = state["velocity"]
                v.mul_(mu).add_(p.grad, alpha=lr)
                if wd:
                    p.mul_(1 - lr * wd)
                p.add_(p.grad * lr + mu * v)
        return loss


class Surrogate(nn.Module):
    def __init__(self, width=64, depth=3):
        super().__init__()
        layers, d = [], 3
        for _ in range(depth):
            layers += [nn.Linear(d, width), nn.Tanh()]
            d = width
        self.net = nn.Sequential(*layers, nn.Linear(d, 1))

    def forward(self, x):
        return self.net(x)


def relative_error(model, x, y):
    with torch.no_grad():
        return ((model(x) - y).norm() / y.norm()).item()


def main():
    x, y = oscillator(4000)
    vx, vy = oscillator(1000)
    model = Surrogate()
    optimizer = NesterovSGD(model.parameters(), lr=0.15, weight_decay=1e-4)
    steps = 400
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: 0.5 + 0.5 * math.cos(math.pi * s / steps))
    criterion = nn.SmoothL1Loss(beta=0.5)
    history = []
    for step in range(steps):
        idx = torch.randint(0, len(x), (128,))
        loss = criterion(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        history.append(loss.item())
        if (step + 1) % 100 == 0:
            recent = sum(history[-50:]) / 50
            print(f"step {step + 1} loss {recent:.5f} rel {relative_error(model, vx, vy):.4f}")
    print(f"RESULT {relative_error(model, vx, vy):.5f}")


if __name__ == "__main__":
    main()
