import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(50)

# u'' = -pi^2 sin(pi x) on [-1, 1], u(-1) = u(1) = 0
inside = DataLoader(TensorDataset(torch.rand(960, 1) * 2 - 1), batch_size=64, shuffle=True)
border = DataLoader(TensorDataset(torch.tensor([[-1.0], [1.0]]).repeat(64, 1)), batch_size=32, shuffle=True)

net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=8e-3)


def residual(x):
    x = x.requires_grad_()
    u = net(x)
    first, = torch.autograd.grad(u.sum(), x, create_graph=True)
    second, = torch.autograd.grad(first.sum(), x, create_graph=True)
    return second + math.pi ** 2 * torch.sin(math.pi * x)


def error():
    x = torch.linspace(-1, 1, 201)[:, None]
    with torch.no_grad():
        return (net(x) - torch.sin(math.pi * x)).square().mean().item()


for epoch in range(10):
    for (x,), (edge,) in zip(inside, border):
        equation = residual(x).square().mean()
        walls = net(edge).square().mean()
        loss = equation / 50 + walls
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f} error {error():.4f}")
print("RESULT", error())
