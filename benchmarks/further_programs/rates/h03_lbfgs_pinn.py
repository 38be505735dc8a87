"""Physics-informed net for u'' = -u, u(0)=0, u'(0)=1: Adam first, then LBFGS with a closure and rate 1."""
import math
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)

net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
t = torch.linspace(0, math.pi, 40).unsqueeze(1).requires_grad_(True)


def d(u, t):
    return torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)[0]


def residual():
    u = net(t)
    du = d(u, t)
    ddu = d(du, t)
    return (ddu + u).pow(2).mean() + u[0].pow(2).sum() + (du[0] - 1).pow(2).sum()


adam = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(200):
    adam.zero_grad()
    loss = residual()
    loss.backward()
    adam.step()
print("after Adam", loss.item())

lbfgs = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=15, history_size=10, line_search_fn="strong_wolfe")
evaluations = 0


def closure():
    global evaluations
    evaluations += 1
    lbfgs.zero_grad()
    loss = residual()
    loss.backward()
    return loss


for outer in range(10):
    loss = lbfgs.step(closure)
    print("outer", outer, loss.item(), "evaluations", evaluations)

with torch.no_grad():
    print("RESULT", (net(t) - torch.sin(t)).pow(2).mean().item())
