"""Meta-learns the start of a network that adapts to a new wave from ten points."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

torch.set_num_threads(1)
torch.manual_seed(67)

config = {"tasks": 8, "shots": 10, "queries": 20, "inner_lr": 0.03, "inner_steps": 3,
          "meta_lr": 2e-3, "iterations": 240}


class Wave:
    """One task: a sine of a random height and phase."""

    def __init__(self, gen):
        self.gen = gen
        self.height = 0.5 + 2.0 * torch.rand(1, generator=gen)
        self.phase = math.pi * torch.rand(1, generator=gen)

    def points(self, n):
        x = torch.rand(n, 1, generator=self.gen) * 8 - 4
        return x, self.height * torch.sin(x + self.phase)


def network(width=40):
    return nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                         nn.Linear(width, 1))


def adapt(model, weights, x, y, create_graph):
    fast = weights
    for _ in range(config["inner_steps"]):
        loss = F.mse_loss(functional_call(model, fast, (x,)), y)
        grads = torch.autograd.grad(loss, list(fast.values()), create_graph=create_graph)
        fast = {k: w - config["inner_lr"] * g for (k, w), g in zip(fast.items(), grads)}
    return fast


def meta_loss(model, gen):
    total = 0.0
    for _ in range(config["tasks"]):
        task = Wave(gen)
        support_x, support_y = task.points(config["shots"])
        query_x, query_y = task.points(config["queries"])
        weights = dict(model.named_parameters())
        fast = adapt(model, weights, support_x, support_y, create_graph=True)
        predicted = functional_call(model, weights, (query_x,))
        total = total + F.mse_loss(predicted, query_y)
    return total / config["tasks"]


def test(model, tasks=100):
    gen = torch.Generator().manual_seed(99)
    weights = {k: w.detach().requires_grad_() for k, w in model.named_parameters()}
    errors = []
    for _ in range(tasks):
        task = Wave(gen)
        fast = adapt(model, weights, *task.points(config["shots"]), create_graph=False)
        x, y = task.points(100)
        with torch.no_grad():
            errors.append(F.mse_loss(functional_call(model, fast, (x,)), y).item())
    return sum(errors) / len(errors)


gen = torch.Generator().manual_seed(1)
model = network()
optimizer = torch.optim.Adam(model.parameters(), lr=config["meta_lr"])
for iteration in range(1, config["iterations"] + 1):
    loss = meta_loss(model, gen)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if iteration % 60 == 0:
        print(f"iteration {iteration} loss {loss.item():.4f} adapted {test(model, 30):.4f}")
print("RESULT", round(test(model), 4))
