"""Boundary value problem u'' = f solved by a network with L-BFGS on fixed points."""
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)


class Trial(nn.Module):
    """x (1 - x) N(x) is zero at both ends for any N."""

    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return x * (1 - x) * self.net(x)


def source(x):
    return -(math.pi ** 2) * torch.sin(math.pi * x) - 16 * math.pi ** 2 * 0.3 * torch.sin(4 * math.pi * x)


def exact(x):
    return torch.sin(math.pi * x) + 0.3 * torch.sin(4 * math.pi * x)


def residual(model, x):
    u = model(x)
    du, = torch.autograd.grad(u.sum(), x, create_graph=True)
    ddu, = torch.autograd.grad(du.sum(), x, create_graph=True)
    return ddu - source(x)


def main(rounds=40):
    torch.manual_seed(70)
    model = Trial()
    x = torch.linspace(0, 1, 64).unsqueeze(1).requires_grad_()
    grid = torch.linspace(0, 1, 301).unsqueeze(1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=10, history_size=20, line_search_fn="strong_wolfe")
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = residual(model, x).pow(2).mean()
        loss.backward()
        return loss

    for r in range(1, rounds + 1):
        loss = optimizer.step(closure)
        if r % 8 == 0:
            print(f"round {r} residual {loss.item():.6f} calls {calls}")
    with torch.no_grad():
        print("RESULT", (model(grid) - exact(grid)).abs().max().item())


if __name__ == "__main__":
    main()
