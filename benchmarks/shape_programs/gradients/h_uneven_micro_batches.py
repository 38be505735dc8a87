# Micro-batches of different sizes; sums are added up and the gradients divided once before the step.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(600, 7)
y = x[:, :1].sin() + x[:, 1:2] * x[:, 2:3]
net = nn.Sequential(nn.Linear(7, 40), nn.Tanh(), nn.Linear(40, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)


def divide(optimizer, args, kwargs):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad.div_(optimizer.rows)


opt.register_step_pre_hook(divide)
for step in range(100):
    idx = torch.randperm(500)[:100]
    cuts = sorted(torch.randint(5, 95, (3,)).tolist())
    opt.zero_grad()
    opt.rows = 0
    for part in idx.tensor_split(cuts):
        if len(part) == 0:
            continue
        nn.functional.mse_loss(net(x[part]), y[part], reduction="sum").backward()
        opt.rows += len(part)
    opt.step()
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(net(x[500:]), y[500:]).item())
