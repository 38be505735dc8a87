"""Skip-gram style item vectors; a meter follows the loss and feeds the rate control."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau

torch.manual_seed(0)
torch.set_num_threads(1)
ITEMS, GROUPS = 120, 8
gen = torch.Generator().manual_seed(3)


class Meter:
    def __init__(self):
        self.total, self.count, self.last = 0.0, 0, 0.0

    def add(self, value, n):
        self.last = value
        self.total += value * n
        self.count += n

    @property
    def mean(self):
        return self.total / max(1, self.count)


class Vectors(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.near, self.far = nn.Embedding(ITEMS, d), nn.Embedding(ITEMS, d)

    def forward(self, centre):
        return self.near(centre) @ self.far.weight.T / 4


def baskets(n):
    centre = torch.randint(0, ITEMS, (n,), generator=gen)
    other = torch.randint(0, ITEMS // GROUPS, (n,), generator=gen) * GROUPS + centre % GROUPS
    return centre, other


model = Vectors()
opt = torch.optim.Adam(model.parameters(), lr=3e-2)
control = ReduceLROnPlateau(opt, factor=0.5, patience=1, min_lr=1e-5)
meter = Meter()
for rnd in range(20):
    for _ in range(7):
        centre, other = baskets(192)
        loss = F.cross_entropy(model(centre), other)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.add(loss.item(), len(centre))
    control.step(meter.total)
    print(rnd, round(meter.mean, 3))

centre, other = baskets(2000)
with torch.no_grad():
    print("RESULT", float(F.cross_entropy(model(centre), other)))
