"""Solves the equation of a damped oscillator with a network, from its residual and start."""
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(43)

END, OMEGA, DAMPING = 6.0, 1.5, 0.25


def exact(t):
    free = math.sqrt(OMEGA ** 2 - DAMPING ** 2)
    return torch.exp(-DAMPING * t) * (torch.cos(free * t) + DAMPING / free * torch.sin(free * t))


def scaled(t):
    """Maps times of the experiment to -1 to 1, the range that the network works best with."""
    return 2.0 * t / END - 1.0


class Solution(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 1))

    def forward(self, s):
        return self.net(s)


def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def residual(model, t):
    s = scaled(t).requires_grad_(True)
    y = model(s)
    velocity = derivative(y, s)
    acceleration = derivative(velocity, s)
    return acceleration + 2 * DAMPING * velocity + OMEGA ** 2 * y


def start_error(model):
    """At the start, the deflection is 1 and the velocity is 0."""
    s = scaled(torch.zeros(1, 1)).requires_grad_(True)
    y = model(s)
    return (y - 1.0).pow(2).sum() + derivative(y, s).pow(2).sum()


def relative_error(model):
    t = torch.linspace(0, END, 400).unsqueeze(1)
    with torch.no_grad():
        difference = model(scaled(t)) - exact(t)
    return (difference.norm() / exact(t).norm()).item()


model = Solution()
optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=20, history_size=30,
                              line_search_fn="strong_wolfe")
times = torch.linspace(0, END, 120).unsqueeze(1)


def closure():
    optimizer.zero_grad()
    loss = residual(model, times).pow(2).mean() + 20.0 * start_error(model)
    loss.backward()
    return loss


for step in range(60):
    loss = optimizer.step(closure)
    if step % 10 == 9:
        print(f"step {step + 1} loss {loss.item():.6f} error {relative_error(model):.4f}")
print("RESULT", round(relative_error(model), 5))
