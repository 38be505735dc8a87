"""Solves the steady heat equation of a rod with a network and a quasi-Newton optimizer."""
import math

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(167)


class Rod(nn.Module):
    """Temperature along the rod; both ends are held at zero by construction."""

    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 1))

    def forward(self, x):
        return x * (1 - x) * self.net(2 * x - 1)


def source(x):
    return math.pi ** 2 * torch.sin(math.pi * x) + 4 * math.pi ** 2 * torch.sin(2 * math.pi * x)


def exact(x):
    return torch.sin(math.pi * x) + torch.sin(2 * math.pi * x)


def residual(rod, x):
    x = x.clone().requires_grad_(True)
    u = rod(x)
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)
    return ddu + source(x)


def sensors(n, gen):
    x = torch.rand(n, 1, generator=gen)
    return x, exact(x) + 0.01 * torch.randn(n, 1, generator=gen)


class Problem:
    def __init__(self, seed=1):
        gen = torch.Generator().manual_seed(seed)
        self.inside = torch.linspace(0, 1, 66)[1:-1].unsqueeze(1)
        self.at, self.measured = sensors(12, gen)
        self.grid = torch.linspace(0, 1, 201).unsqueeze(1)

    def loss(self, rod):
        physics = residual(rod, self.inside).pow(2).mean()
        data = (rod(self.at) - self.measured).pow(2).mean()
        return physics / 100 + data

    @torch.no_grad()
    def error(self, rod):
        u = exact(self.grid)
        return ((rod(self.grid) - u).norm() / u.norm()).item()


def solve(problem, rod, rounds=60):
    opt = torch.optim.LBFGS(rod.parameters(), lr=0.5, max_iter=5, history_size=20)

    def closure():
        loss = problem.loss(rod)
        loss.backward()
        return loss

    for k in range(rounds):
        loss = opt.step(closure)
        if k % 10 == 9:
            print(f"round {k + 1} loss {loss.item():.6f} error {problem.error(rod):.5f}")
    return problem.error(rod)


if __name__ == "__main__":
    print("RESULT", solve(Problem(), Rod()))
