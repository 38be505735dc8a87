"""A loaded beam: a few measurements and the law  u'' = -q(x)."""
import math
import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)


def load(x):
    return (math.pi ** 2) * torch.sin(math.pi * x) + 4 * math.pi ** 2 * torch.sin(2 * math.pi * x)


def truth(x):
    return torch.sin(math.pi * x) + torch.sin(2 * math.pi * x)


class Beam(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return x * (1 - x) * self.net(2 * x - 1) * 4


def law(model, points):
    x = points.clone().requires_grad_(True)
    u = model(x)
    slope, = torch.autograd.grad(u.sum(), x, create_graph=True)
    bend, = torch.autograd.grad(slope.sum(), x)
    return (bend + load(x)).pow(2).mean()


gen = torch.Generator().manual_seed(4)
sensors = torch.tensor([[0.1], [0.5], [0.8]])
readings = truth(sensors) + 0.02 * torch.randn(3, 1, generator=gen)
model = Beam()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(150):
    points = torch.rand(64, 1, generator=gen)
    fit = (model(sensors) - readings).pow(2).mean()
    physics = law(model, points)
    loss = fit + 0.01 * physics
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(f"{step} fit {fit.item():.4f} physics {physics.item():.3f}")

grid = torch.linspace(0, 1, 101)[:, None]
with torch.no_grad():
    print("RESULT", float((model(grid) - truth(grid)).pow(2).mean()))
