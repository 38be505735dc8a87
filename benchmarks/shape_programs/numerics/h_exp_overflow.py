"""Failure times of pumps: a hazard model whose risk sums run over e^score with large scores."""
import torch
from torch import nn

torch.manual_seed(24)
torch.set_num_threads(1)


def pumps(n):
    x = torch.randn(n, 6)
    risk = 1.5 * x[:, 0] - x[:, 1] + torch.sin(2 * x[:, 2])
    time = -torch.log(torch.rand(n).clamp_min(1e-6)) * torch.exp(-risk)
    return x, time


def cox_loss(score, time):
    order = time.argsort(descending=True)
    score = 60.0 * score[order]
    top = score.detach().cummax(0).values
    later = torch.ones(len(score), len(score), dtype=torch.bool).triu(1)
    running = torch.exp((score[None] - top[:, None]).masked_fill(later, float("-inf"))).sum(1)
    return (torch.log(running) + top - score).mean() / 60.0


net = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 1))
net[2].bias.data.fill_(3.0)
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(120):
    x, time = pumps(96)
    loss = cox_loss(net(x).squeeze(1), time)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, loss.item())
x, time = pumps(400)
with torch.no_grad():
    print("RESULT", cox_loss(net(x).squeeze(1), time).item())
