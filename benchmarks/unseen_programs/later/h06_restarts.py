import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(6)


def task(n):
    x = torch.rand(n, 4) * 2 - 1
    return x, (torch.sin(4 * x[:, 0]) * x[:, 1] + x[:, 2] ** 2 - x[:, 3]).unsqueeze(1)


x, y = task(3000)
xv, yv = task(800)
net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
CYCLE = 300
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, CYCLE, eta_min=1e-4)
snapshots = []
for step in range(5 * CYCLE):
    i = torch.randint(0, 3000, (64,))
    loss = nn.functional.mse_loss(net(x[i]), y[i])
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if (step + 1) % CYCLE == 0:
        with torch.no_grad():
            snapshots.append(net(xv))
        print(step + 1, nn.functional.mse_loss(snapshots[-1], yv).item())
ensemble = torch.stack(snapshots[-3:]).mean(0)
print("RESULT", nn.functional.mse_loss(ensemble, yv).item())
