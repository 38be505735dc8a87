"""Layer-wise rates: the head learns fastest, each block below it slower."""
import math
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(0)
torch.set_num_threads(1)
STEPS = 120


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.f = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, d))

    def forward(self, x):
        return x + self.f(self.norm(x))


net = nn.Sequential(nn.Linear(7, 32), Block(32), Block(32), nn.Linear(32, 1))


def layerwise(net, base, decay):
    groups, rates = [], []
    for below, part in enumerate(reversed(net)):
        def rate(step):
            return decay ** below * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        groups.append({"params": list(part.parameters())})
        rates.append(rate)
    opt = torch.optim.Adam(groups, lr=base)
    return opt, LambdaLR(opt, rates)


gen = torch.Generator().manual_seed(4)
X = torch.rand(1200, 7, generator=gen)
Y = torch.sin(6 * X[:, 0]) + 2 * X[:, 1] * X[:, 2] + (X[:, 3] - 0.5).abs()

opt, sched = layerwise(net, 2e-2, 0.25)
for step in range(STEPS):
    idx = torch.randint(0, 900, (64,), generator=gen)
    loss = nn.functional.mse_loss(net(X[idx]).squeeze(1), Y[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 30 == 0:
        print(step, loss.item())

net.eval()
with torch.no_grad():
    print("RESULT", float(nn.functional.mse_loss(net(X[900:]).squeeze(1), Y[900:])))
