import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(91)
torch.set_num_threads(1)


def batch(n=40):
    x = torch.randn(n, 10)
    return x, (x[:, :1] * x[:, 1:2]).tanh() + x[:, 2:3] + 0.2 * torch.randn(n, 1)


def lr_find(model, optimizer, start=1e-5, end=3.0, num=80):
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    for g in optimizer.param_groups:
        g["lr"] = start
    sched = torch.optim.lr_scheduler.ExponentialLR(optimizer, (end / start) ** (1 / num))
    lrs, losses, avg, best = [], [], 0.0, float("inf")
    for k in range(num):
        x, y = batch()
        loss = F.mse_loss(model(x), y)
        avg = 0.9 * avg + 0.1 * loss.item()
        smooth = avg / (1 - 0.9 ** (k + 1))
        best = min(best, smooth)
        lrs.append(optimizer.param_groups[0]["lr"])
        losses.append(smooth)
        if smooth > 4 * best:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sched.step()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    return lrs[min(range(len(losses)), key=losses.__getitem__)] / 10


model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
lr = lr_find(model, optimizer)
print(f"suggested lr {lr:.4f}")
for g in optimizer.param_groups:
    g["lr"] = lr
steps = 400
sched = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
for step in range(steps):
    x, y = batch()
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sched.step()
x, y = batch(2000)
with torch.no_grad():
    print(f"result: {F.mse_loss(model(x), y).item():.4f}")
