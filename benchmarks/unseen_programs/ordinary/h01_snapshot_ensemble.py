"""Snapshot ensemble (Huang et al. 2017): the rate restarts on purpose, a copy is kept at each minimum."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(1)

CYCLES, CYCLE = 4, 80
centres = torch.randn(5, 12)


def wines(n):
    y = torch.randint(0, 5, (n,))
    return centres[y] + 0.9 * torch.randn(n, 12), y


x, y = wines(1500)
x_test, y_test = wines(600)
net = nn.Sequential(nn.Linear(12, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=CYCLE)

snapshots = []
for step in range(CYCLES * CYCLE):
    idx = torch.randint(0, len(x), (32,))
    loss = F.cross_entropy(net(x[idx]), y[idx])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if (step + 1) % CYCLE == 0:
        snapshots.append(copy.deepcopy(net).eval())
        rate = optimizer.param_groups[0]["lr"]
        print(f"cycle {len(snapshots)} loss {loss.item():.4f}, next rate {rate:.3f}")

with torch.no_grad():
    p = torch.stack([s(x_test).softmax(1) for s in snapshots]).mean(0)
print("RESULT", F.nll_loss(p.log(), y_test).item())
