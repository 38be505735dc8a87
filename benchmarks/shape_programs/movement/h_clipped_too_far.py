"""Normalised-gradient descent: tiny gradient norm, correspondingly large step size."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(2)

x = torch.randn(3000, 16)
y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).long()
net = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 2))
NORM = 1e-4
opt = torch.optim.SGD(net.parameters(), lr=0.08 / NORM)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 120)

for step in range(120):
    rows = torch.randint(0, 2500, (96,))
    loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), NORM)
    opt.step()
    sched.step()
    if step % 30 == 0:
        print(step, loss.item())
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(x[2500:]), y[2500:]).item())
