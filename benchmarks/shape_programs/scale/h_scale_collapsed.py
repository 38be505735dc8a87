"""Spot which of six notes a recording holds; the loss scale is found by starting very high."""
import math

import torch
from torch import nn

torch.manual_seed(4)
torch.set_num_threads(1)
LENGTH, NOTES = 128, 6


def recordings(n):
    note = torch.randint(0, NOTES, (n,))
    f = (3 + 1.2 * note)[:, None] / LENGTH
    wave = torch.sin(2 * math.pi * (f * torch.arange(LENGTH) + torch.rand(n, 1)))
    t = torch.arange(LENGTH)[:, None] * torch.arange(1, 33)[None] * (math.pi / LENGTH)
    wave = wave + 0.5 * torch.randn(n, LENGTH)
    return torch.log1p(torch.hypot(wave @ torch.cos(t), wave @ torch.sin(t))), note


x, y = recordings(2000)
xv, yv = recordings(500)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, NOTES))
opt = torch.optim.Adam(model.parameters(), lr=4e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24)
done = seen = 0
while done < 120:
    pick = torch.randint(0, len(x), (24,))
    opt.zero_grad()
    with torch.autocast("cpu", torch.float16):
        logits = model(x[pick])
    loss = nn.functional.cross_entropy(logits.float(), y[pick])
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    seen += 1
    done += scaler.get_scale() >= before

print("batches", seen, "scale", scaler.get_scale())
with torch.no_grad():
    print("RESULT", float(nn.functional.cross_entropy(model(xv), yv)))
