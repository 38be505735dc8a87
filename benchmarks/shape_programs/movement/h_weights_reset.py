"""Reptile: after every task the weights go back to the common start plus a part of the way."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(40)


def task():
    amp, phase = 0.5 + 2 * torch.rand(()), 3 * torch.rand(())
    u = torch.rand(40, 1) * 6 - 3
    return u, amp * torch.sin(u + phase)


def adapt(net, u, v, steps=5):
    opt = torch.optim.SGD(net.parameters(), lr=0.03)
    for _ in range(steps):
        loss = (net(u[:20]) - v[:20]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
for round_ in range(28):
    start = {k: p.detach().clone() for k, p in net.named_parameters()}
    loss = adapt(net, *task())
    with torch.no_grad():
        for k, p in net.named_parameters():
            p.copy_(start[k] + 0.5 * (p - start[k]))
u, v = task()
adapt(net, u, v)
with torch.no_grad():
    print("RESULT", (net(u[20:]) - v[20:]).square().mean().item())
