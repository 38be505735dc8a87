# Adversarially hardened tabular classifier: the attack's backward pass also fills the weights' gradients first.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 2))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)


def attack(x, y, size=0.15):
    moved = x.clone().requires_grad_()
    nn.functional.cross_entropy(net(moved), y).backward()
    return (moved + size * moved.grad.sign()).detach()


def draw(n):
    x = torch.randn(n, 8)
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()


for step in range(120):
    x, y = draw(64)
    hard = attack(x, y)
    for p in net.parameters():
        p.grad.zero_()
    loss = nn.functional.cross_entropy(net(torch.cat([x, hard])), torch.cat([y, y]))
    loss.backward()
    opt.step()
x, y = draw(800)
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(x), y).item())
