"""Physics-informed network for u'' = -u: Adam first, then L-BFGS on the same weights."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(35)
net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
grid = torch.linspace(0, 3, 50)[:, None].requires_grad_(True)


def residual():
    u = net(grid)
    du, = torch.autograd.grad(u.sum(), grid, create_graph=True)
    ddu, = torch.autograd.grad(du.sum(), grid, create_graph=True)
    start = u[0, 0].square() + (du[0, 0] - 1).square()
    return (ddu + u).square().mean() + start


adam = torch.optim.Adam(net.parameters(), lr=5e-3)
lbfgs = torch.optim.LBFGS(net.parameters(), max_iter=6, line_search_fn="strong_wolfe")


def closure():
    lbfgs.zero_grad()
    loss = residual()
    loss.backward()
    return loss


for step in range(100):
    adam.zero_grad()
    loss = residual()
    loss.backward()
    adam.step()
print("after Adam", loss.item())
for step in range(25):
    loss = lbfgs.step(closure)
print("after L-BFGS", loss.item())
with torch.no_grad():
    print("RESULT", (net(grid) - grid.sin()).square().mean().item())
