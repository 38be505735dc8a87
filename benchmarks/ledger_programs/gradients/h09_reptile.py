import copy
import math

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(19)
torch.set_num_threads(1)


def sine_task():
    a, ph = 0.5 + 2 * torch.rand(1), math.pi * torch.rand(1)

    def draw(n):
        x = torch.rand(n, 1) * 6 - 3
        return x, a * torch.sin(x + ph)
    return draw


def adapt(net, draw, steps, lr=0.02):
    fast = copy.deepcopy(net)
    inner = torch.optim.SGD(fast.parameters(), lr=lr)
    x, y = draw(16)
    for _ in range(steps):
        inner.zero_grad()
        F.mse_loss(fast(x), y).backward()
        inner.step()
    return fast


meta = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
outer = torch.optim.Adam(meta.parameters(), lr=4e-3)
for it in range(150):
    outer.zero_grad()
    for _ in range(3):
        fast = adapt(meta, sine_task(), 6)
        for p, q in zip(meta.parameters(), fast.parameters()):
            d = (p.data - q.data) / 3
            p.grad = d if p.grad is None else p.grad + d
    outer.step()

errs = []
for _ in range(20):
    draw = sine_task()
    fast = adapt(meta, draw, 12)
    x, y = draw(100)
    with torch.no_grad():
        errs.append(F.mse_loss(fast(x), y).item())
print(f"result: {sum(errs) / len(errs):.4f}")
