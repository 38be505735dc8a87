"""Tempo regression from onset envelopes; stops if the loss scale can not settle."""
import math

import torch
from torch import nn

torch.manual_seed(3)
torch.set_num_threads(1)


class Watch:
    def __init__(self, patience=40):
        self.patience, self.bad = patience, 0

    def check(self, norm):
        if math.isfinite(norm):
            self.bad = 0
            return
        self.bad += 1
        if self.bad > self.patience:
            raise FloatingPointError("the loss scale does not settle")


def envelopes(n, length=64):
    tempo = torch.rand(n, 1) * 120 + 60
    t = torch.arange(length) / 16
    phase = torch.rand(n, 1) * 0.3
    wave = torch.cos(2 * math.pi * (tempo / 60 * t + phase)).relu() ** 2
    return wave + 0.05 * torch.randn(n, length), tempo - 120


x, y = envelopes(768)
xv, yv = envelopes(256)
net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
watch = Watch()

for step in range(120):
    pick = torch.randint(0, len(x), (96,))
    opt.zero_grad()
    with torch.autocast("cpu", torch.float16):
        out = net(x[pick])
    loss = (out.float() - y[pick]).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = torch.nn.utils.get_total_norm([p.grad for p in net.parameters()]).item()
    watch.check(norm)
    scaler.step(opt)
    scaler.update()

with torch.no_grad():
    print("RESULT", float((net(xv) - yv).abs().mean()))
