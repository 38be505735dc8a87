import math
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(1)
RHO = 0.8
TRUE = -0.5 * math.log(1 - RHO ** 2)


def pairs(n):
    a = torch.randn(n, 1)
    return a, RHO * a + (1 - RHO ** 2) ** 0.5 * torch.randn(n, 1)


critic = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.Adam(critic.parameters(), lr=1e-3)


def bound(a, b):
    joint = critic(torch.cat([a, b], 1)).mean()
    shuffled = b[torch.randperm(len(b))]
    outer = critic(torch.cat([a, shuffled], 1))
    return joint - (torch.logsumexp(outer, 0) - math.log(len(b))).squeeze()


for step in range(800):
    loss = -bound(*pairs(256))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 200 == 0:
        print(step, f"{-loss.item():.4f} of {TRUE:.4f}")
with torch.no_grad():
    est = bound(*pairs(20000)).item()
print("RESULT", abs(est - TRUE))
