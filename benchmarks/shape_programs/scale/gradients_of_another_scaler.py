"""Shop forecasts: one trunk over shared features, a head per target, each with its own optimizer."""
import torch
from torch import nn

torch.manual_seed(13)
torch.set_num_threads(1)
START = {"price": 2.0 ** 14, "demand": 2.0 ** 5}


def shops(n):
    x = torch.randn(n, 8)
    price = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]
    demand = 2 * torch.cos(1.5 * x[:, 3:4]) + x[:, 4:5] * x[:, 5:6]
    return x, {"price": price, "demand": demand}


trunk = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh())
heads = {name: nn.Linear(32, 1) for name in START}
trunk_opt = torch.optim.SGD(trunk.parameters(), lr=0.12, momentum=0.9)
head_opts = {name: torch.optim.SGD(h.parameters(), lr=0.05, momentum=0.9) for name, h in heads.items()}
scalers = {name: torch.amp.GradScaler("cpu", init_scale=s) for name, s in START.items()}


def train_step(x, targets):
    trunk_opt.zero_grad()
    for o in head_opts.values():
        o.zero_grad()
    with torch.autocast("cpu", torch.float16):
        z = trunk(x)
        outs = {name: head(z) for name, head in heads.items()}
    for name, out in outs.items():
        loss = (out.float() - targets[name]).pow(2).mean()
        scalers[name].scale(loss).backward(retain_graph=True)
    for name, o in head_opts.items():
        scalers[name].step(o)
    scalers["price"].step(trunk_opt)
    for s in set(scalers.values()):
        s.update()


x, targets = shops(2048)
xv, test = shops(512)
for step in range(150):
    pick = torch.randint(0, len(x), (128,))
    train_step(x[pick], {name: t[pick] for name, t in targets.items()})

with torch.no_grad():
    errors = {name: float((heads[name](trunk(xv)) - test[name]).pow(2).mean()) for name in heads}
print(errors)
print("RESULT", sum(errors.values()))
