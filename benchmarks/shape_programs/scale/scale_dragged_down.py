"""One net per quantity of a wing section: pressure offset in Pa and deflection in m."""
from dataclasses import dataclass

import torch
from torch import nn

torch.manual_seed(6)
torch.set_num_threads(1)


def net():
    return nn.Sequential(nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))


@dataclass
class Part:
    name: str
    unit: float
    model: nn.Module
    opt: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    def predict(self, x):
        return self.model(x).float() * self.unit

    def learn(self, x, target):
        self.opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            out = self.predict(x)
        loss = (out - target).pow(2).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)


def build(units):
    scaler = torch.amp.GradScaler("cpu")
    parts = []
    for name, unit in units.items():
        model = net()
        opt = torch.optim.Adam(model.parameters(), lr=4e-3, eps=1e-20)
        parts.append(Part(name, unit, model, opt, scaler))
    return parts


def flow(n):
    x = torch.rand(n, 3) * 2 - 1
    pa = 3000 * torch.sin(2 * x[:, :1]) * x[:, 1:2] + 800 * x[:, 2:]
    return x, {"pressure": pa, "deflection": 1e-4 * (torch.cos(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:])}


x, data = flow(2048)
xv, test = flow(512)
parts = build({"pressure": 1000.0, "deflection": 1e-4})
for step in range(100):
    pick = torch.randint(0, len(x), (256,))
    for part in parts:
        part.learn(x[pick], data[part.name][pick])
    for scaler in {id(p.scaler): p.scaler for p in parts}.values():
        scaler.update()

with torch.no_grad():
    errors = [((p.predict(xv) - test[p.name]) / p.unit).abs().mean() for p in parts]
    print([float(e) for e in errors])
    print("RESULT", float(sum(errors)))
