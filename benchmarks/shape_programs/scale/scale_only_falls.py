"""Fit orbital residuals: coarse pass over raw arcs first, then the fine pass over millimetres."""
import torch
from torch import nn

torch.manual_seed(8)
torch.set_num_threads(1)


class Arc(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))

    def forward(self, x, unit):
        return self.net(x).float() * unit


def arcs(n, unit, drag):
    x = torch.rand(n, 4) * 2 - 1
    y = torch.sin(3 * x[:, :1]) * x[:, 1:2]
    if drag:
        y = y + x[:, 2:3] * torch.cos(2 * x[:, 3:])
    return x, y * unit


def next_scale(scale, finite, low=2.0 ** -20):
    return scale if finite else max(scale / 2, low)


def train(model, scaler, unit, steps, drag):
    opt = torch.optim.Adam(model.parameters(), lr=5e-3, eps=1e-20)
    x, y = arcs(1024, unit, drag)
    for _ in range(steps):
        pick = torch.randint(0, len(x), (128,))
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            out = model(x[pick], unit)
        scaler.scale((out - y[pick]).square().mean()).backward()
        finite = all(torch.isfinite(p.grad).all() for p in model.parameters())
        scaler.step(opt)
        scaler.update(next_scale(scaler.get_scale(), finite))


model = Arc()
scaler = torch.amp.GradScaler("cpu")
train(model, scaler, 2000.0, 40, drag=False)
train(model, scaler, 1e-3, 110, drag=True)

xv, yv = arcs(512, 1e-3, True)
with torch.no_grad():
    print("scale", scaler.get_scale())
    print("RESULT", float((model(xv, 1e-3) - yv).abs().mean() * 1000))
