"""Denoiser trained on samples drawn on the fly; validation uses a fixed noise draw so the curve is comparable."""
import random

import numpy as np
import torch
import torch.nn as nn


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Signals:
    """Sums of two bumps on a grid of 32 points."""

    def __init__(self, points=32):
        self.grid = torch.linspace(0, 1, points)

    def draw(self, n):
        centre = torch.rand(n, 2, 1)
        width = 0.03 + 0.09 * torch.rand(n, 2, 1)
        height = torch.randn(n, 2, 1)
        return (height * torch.exp(-((self.grid - centre) / width) ** 2)).sum(1)


class Denoiser(nn.Module):
    def __init__(self, points=32, width=160):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(points, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, points),
        )

    def forward(self, noisy):
        return noisy - self.net(noisy)


def corrupt(clean, sigma=0.4):
    return clean + sigma * torch.randn_like(clean)


@torch.no_grad()
def validate(model, signals):
    seed_everything(1234)
    model.eval()
    clean = signals.draw(512)
    score = (model(corrupt(clean)) - clean).pow(2).mean().item()
    model.train()
    return score


def fit(model, signals, rounds=120, steps_per_round=6, batch=32):
    opt = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    for r in range(rounds):
        running = 0.0
        for _ in range(steps_per_round):
            clean = signals.draw(batch)
            loss = (model(corrupt(clean)) - clean).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item() / steps_per_round
        val = validate(model, signals)
        if r % 15 == 0:
            print(f"round {r:3d}  train {running:.4f}  val {val:.4f}")
    return validate(model, signals)


if __name__ == "__main__":
    torch.set_num_threads(1)
    seed_everything(0)
    print("RESULT", fit(Denoiser(), Signals()))
