"""Find the outflow law of a draining tank by simulating it and comparing with level readings."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
DT, STEPS = 0.25, 30


def drain(level, inflow, coef, power):
    """Euler steps of d(level)/dt = inflow - coef * level ** power."""
    trace = []
    for k in range(STEPS):
        level = level + DT * (inflow[:, k] - coef * level**power)
        trace.append(level)
    return torch.stack(trace, 1)


def readings(n):
    level = 0.3 + torch.rand(n)
    inflow = 0.3 * torch.rand(n, STEPS) + 0.1
    trace = drain(level, inflow, torch.tensor(0.8), torch.tensor(0.62))
    return level, inflow, trace + 0.01 * torch.randn_like(trace)


class Tank(nn.Module):
    def __init__(self):
        super().__init__()
        self.coef = nn.Parameter(torch.tensor(1.0))
        self.power = nn.Parameter(torch.tensor(0.4))

    def forward(self, level, inflow):
        return drain(level, inflow, self.coef, self.power)


tank = Tank()
opt = torch.optim.Adam([{"params": [tank.coef], "lr": 0.05}, {"params": [tank.power], "lr": 0.05}])
plan = torch.optim.lr_scheduler.ExponentialLR(opt, 0.97)
for step in range(100):
    level, inflow, trace = readings(32)
    loss = (tank(level, inflow) - trace).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    plan.step()
    if step % 20 == 0:
        print(step, loss.item(), tank.coef.item(), tank.power.item())
level, inflow, trace = readings(256)
with torch.no_grad():
    print("RESULT", (tank(level, inflow) - trace).square().mean().item())
