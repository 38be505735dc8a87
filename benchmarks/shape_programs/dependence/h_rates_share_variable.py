"""Rates per part, made in a loop by a factory, two parts with the same rate on purpose."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(0)
torch.set_num_threads(1)
STEPS = 120
gen = torch.Generator().manual_seed(4)
parts = nn.ModuleDict({"stem": nn.Linear(9, 48), "mid": nn.Linear(48, 48), "end": nn.Linear(48, 3)})


def decayed(half_life):
    return lambda step: 0.5 ** (step / half_life)


groups, rates = [], []
for name, half_life in (("stem", 60), ("mid", 60), ("end", 40)):
    groups.append({"params": parts[name].parameters(), "name": name})
    rates.append(decayed(half_life))
opt = torch.optim.Adam(groups, lr=8e-3)
sched = LambdaLR(opt, rates)


def forward(x):
    return parts["end"](torch.relu(parts["mid"](torch.relu(parts["stem"](x)))))


def draw(n):
    x = torch.randn(n, 9, generator=gen)
    s = x[:, :3].square().sum(1)
    return x, (s > 1.6).long() + (s > 3.2).long()


for step in range(STEPS):
    x, y = draw(96)
    loss = F.cross_entropy(forward(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 30 == 0:
        print(step, loss.item(), sched.get_last_lr())
x, y = draw(1000)
with torch.no_grad():
    print("RESULT", float(F.cross_entropy(forward(x), y)))
