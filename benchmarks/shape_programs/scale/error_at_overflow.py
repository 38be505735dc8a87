"""Tempo regression from onset envelopes, with gradient histograms for the dashboard."""
import math

import torch
from torch import nn

torch.manual_seed(3)
torch.set_num_threads(1)


class GradientHistograms:
    def __init__(self, model, bins=24):
        self.model, self.bins, self.rows = model, bins, []

    def record(self, step):
        for name, p in self.model.named_parameters():
            size = p.grad.abs().clamp_min(1e-12).log10()
            self.rows.append((step, name, torch.histc(size, self.bins)))


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
histograms = GradientHistograms(net)

for step in range(120):
    pick = torch.randint(0, len(x), (96,))
    opt.zero_grad()
    with torch.autocast("cpu", torch.float16):
        out = net(x[pick])
    loss = (out.float() - y[pick]).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    if step % 10 == 0:
        histograms.record(step)
    scaler.step(opt)
    scaler.update()

with torch.no_grad():
    print("rows", len(histograms.rows))
    print("RESULT", float((net(xv) - yv).abs().mean()))
