"""Linear up, linear down, per step, from exactly nothing to nothing."""
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(0)
torch.set_num_threads(1)
gen = torch.Generator().manual_seed(2)
X = torch.randn(960, 8, generator=gen)
Y = torch.sin(X[:, 0] + X[:, 1]) + 0.3 * X[:, 2] * X[:, 3]
STEPS, WARM = 144, 12


def triangle(step):
    if step < WARM:
        return step / WARM
    return max(0.0, (STEPS - step) / (STEPS - WARM))


stem = nn.Sequential(nn.Linear(8, 64), nn.Tanh())
body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.AdamW([{"params": body.parameters(), "lr": 8e-3}, {"params": stem.parameters(), "lr": 2e-3}])
sched = LambdaLR(opt, triangle)
step = 0
while step < STEPS:
    for idx in torch.randperm(768, generator=gen).split(48):
        loss = nn.functional.mse_loss(body(stem(X[idx])).squeeze(1), Y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        step += 1
    print(step, loss.item())
with torch.no_grad():
    print("RESULT", float(nn.functional.mse_loss(body(stem(X[768:])).squeeze(1), Y[768:])))
