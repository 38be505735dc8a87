"""Encoder and head with a warm-up and a cosine each."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(0)
torch.set_num_threads(1)
STEPS = 120


class WarmCosine:
    def __init__(self, peak, warm, total, floor=0.05):
        self.peak, self.warm, self.total, self.floor = peak, warm, total, floor

    def __call__(self, step):
        if step < self.warm:
            return self.peak * (step + 1) / self.warm
        share = (step - self.warm) / max(1, self.total - self.warm)
        return self.peak * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * share)))


class SetNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64))
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, pts):
        return self.head(self.encoder(pts).amax(1))


def shapes(n, gen):
    y = torch.randint(0, 4, (n,), generator=gen)
    p = torch.randn(n, 24, 3, generator=gen)
    stretch = torch.tensor([[1, 1, 1], [2, .5, 1], [.5, 2, 1], [1, .5, 2]])[y]
    return p * stretch[:, None], y


model = SetNet()
rates = {"encoder": 1e-2, "head": 3e-2}
opt = torch.optim.Adam([{"params": getattr(model, k).parameters(), "lr": v} for k, v in rates.items()])
sched = LambdaLR(opt, [WarmCosine(v, 10, STEPS) for v in rates.values()])
gen = torch.Generator().manual_seed(3)
for step in range(STEPS):
    x, y = shapes(48, gen)
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 30 == 0:
        print(step, loss.item())
model.eval()
x, y = shapes(500, gen)
with torch.no_grad():
    print("RESULT", float(F.cross_entropy(model(x), y)))
