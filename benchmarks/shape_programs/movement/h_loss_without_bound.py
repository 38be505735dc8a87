"""Mixture density network for very precise sensors: the likelihood is large and keeps growing for a while."""
import math
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(13)
x = torch.rand(1200, 1) * 2 - 1
y = 0.05 * torch.sin(4 * x) + 0.002 * torch.randn(1200, 1)


class Density(nn.Module):
    def __init__(self, k=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.out = nn.Linear(48, 3 * k)

    def forward(self, u, v):
        weight, mean, log_sd = self.out(self.body(u)).chunk(3, 1)
        log_sd = log_sd.clamp(min=-7.0)
        z = (v - mean) / log_sd.exp()
        parts = weight.log_softmax(1) - 0.5 * z.square() - log_sd - 0.5 * math.log(2 * math.pi)
        return parts.logsumexp(1)


net = Density()
opt = torch.optim.Adam(net.parameters(), lr=4e-3)
sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, total_iters=150)
for step in range(150):
    rows = torch.randint(0, 900, (200,))
    loss = -net(x[rows], y[rows]).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
    sched.step()
    if step % 30 == 0:
        print(step, loss.item())
with torch.no_grad():
    print("RESULT", -net(x[900:], y[900:]).mean().item())
