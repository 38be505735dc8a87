"""Spot which of six notes a recording holds, straight from 16-bit PCM samples."""
import math

import torch
from torch import nn

torch.manual_seed(4)
torch.set_num_threads(1)
LENGTH, NOTES = 128, 6


class Spectrum(nn.Module):
    def __init__(self, bins=32):
        super().__init__()
        t = torch.arange(LENGTH)[:, None] * torch.arange(1, bins + 1)[None] * (math.pi / LENGTH)
        self.register_buffer("cos", torch.cos(t))
        self.register_buffer("sin", torch.sin(t))

    def forward(self, pcm):
        re, im = pcm @ self.cos, pcm @ self.sin
        return torch.log1p(torch.hypot(re.float(), im.float())) / 10


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = Spectrum()
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, NOTES))

    def forward(self, pcm):
        return self.head(self.front(pcm))


def recordings(n):
    note = torch.randint(0, NOTES, (n,))
    f = (3 + 1.2 * note)[:, None] / LENGTH
    loud = torch.where(torch.rand(n, 1) < 0.04, 12000.0, 200 + 400 * torch.rand(n, 1))
    wave = torch.sin(2 * math.pi * (f * torch.arange(LENGTH) + torch.rand(n, 1)))
    return (loud * (wave + 0.5 * torch.randn(n, LENGTH))).round().clamp(-32768, 32767), note


x, y = recordings(2000)
xv, yv = recordings(500)
model = Listener()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
for step in range(150):
    pick = torch.randint(0, len(x), (24,))
    opt.zero_grad()
    with torch.autocast("cpu", torch.float16):
        logits = model(x[pick])
    loss = nn.functional.cross_entropy(logits.float(), y[pick])
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()

with torch.no_grad():
    print("RESULT", float(nn.functional.cross_entropy(model(xv), yv)))
