import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

TOTAL = 400
path = os.path.join(tempfile.mkdtemp(), "ckpt.pt")


def batch(gen, n=32, noise=0.6):
    x = torch.randn(n, 8, generator=gen)
    y = (x[:, 0] * x[:, 1]).tanh() + torch.sin(2 * x[:, 2]) + 0.5 * x[:, 3]
    return x, (y + noise * torch.randn(n, generator=gen)).unsqueeze(1)


def session(stop, path):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.12, momentum=0.9)
    sched = SequentialLR(opt, [LinearLR(opt, 0.02, 1.0, 25), CosineAnnealingLR(opt, TOTAL - 25)], [25])
    start = 0
    if os.path.exists(path):
        s = torch.load(path)
        model.load_state_dict(s["model"])
        opt.load_state_dict(s["opt"])
        sched.load_state_dict(s["sched"])
        start = s["step"]
        print(f"continuing at {start}, lr {opt.param_groups[0]['lr']:.4f}")
    gen = torch.Generator().manual_seed(start)
    for step in range(start, stop):
        x, y = batch(gen)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(), "step": stop}, path)
    return model


for stop in (90, 250, TOTAL):
    model = session(stop, path)
x, y = batch(torch.Generator().manual_seed(5), 1500, noise=0.0)
with torch.no_grad():
    print(f"result: {F.mse_loss(model(x), y).item():.4f}")
