"""Physics-informed fit of a damped oscillator  u'' + 0.4 u' + 4 u = 0,  u(0)=1, u'(0)=0."""
import math

import torch
from torch import nn

torch.manual_seed(2)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
t = torch.linspace(0, 3, 60).unsqueeze(1).requires_grad_(True)
t0 = torch.zeros(1, 1, requires_grad=True)


def derivative(u, x):
    return torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]


def residual_loss():
    u = net(t)
    du = derivative(u, t)
    ddu = derivative(du, t)
    phys = (ddu + 0.4 * du + 4 * u).pow(2).mean()
    u0 = net(t0)
    du0 = derivative(u0, t0)
    return phys + 10 * (u0 - 1).pow(2).sum() + 10 * du0.pow(2).sum()


adam = torch.optim.Adam(net.parameters(), lr=5e-3)
for i in range(200):
    adam.zero_grad()
    loss = residual_loss()
    loss.backward()
    adam.step()
print(f"adam phase {loss.item():.5f}")

lbfgs = torch.optim.LBFGS(net.parameters(), lr=1, max_iter=12, history_size=20, line_search_fn="strong_wolfe")


def closure():
    loss = residual_loss()
    loss.backward()
    return loss


for outer in range(10):
    lbfgs.zero_grad()
    loss = lbfgs.step(closure)
    if outer % 4 == 0:
        print(f"lbfgs {outer} {loss.item():.6f}")

w = math.sqrt(4 - 0.04)
tt = torch.linspace(0, 3, 200).unsqueeze(1)
exact = torch.exp(-0.2 * tt) * (torch.cos(w * tt) + 0.2 / w * torch.sin(w * tt))
with torch.no_grad():
    print(f"result: {(net(tt) - exact).abs().mean().item():.6f}")
