"""Warm restarts of the cosine, and the average of the nets at each low point."""
import copy
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

torch.manual_seed(0)
torch.set_num_threads(1)
gen = torch.Generator().manual_seed(5)
CYCLE, CYCLES = 45, 3


def draw(n):
    x = torch.rand(n, 5, generator=gen) * 2 - 1
    return x, (x[:, 0] * x[:, 1] + torch.sin(3 * x[:, 2]))[:, None] + 0.1 * torch.randn(n, 1, generator=gen)


net = nn.Sequential(nn.Linear(5, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.15, momentum=0.9)
sched = CosineAnnealingWarmRestarts(opt, T_0=CYCLE, eta_min=1e-4)
snapshots = []
for step in range(CYCLE * CYCLES):
    x, y = draw(64)
    loss = nn.functional.mse_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (step + 1) % CYCLE == 0:
        snapshots.append(copy.deepcopy(net).eval())
        print(step, loss.item())
    sched.step()
x, y = draw(1000)
with torch.no_grad():
    pred = torch.stack([s(x) for s in snapshots[1:]]).mean(0)
    print("RESULT", float(nn.functional.mse_loss(pred, y)))
