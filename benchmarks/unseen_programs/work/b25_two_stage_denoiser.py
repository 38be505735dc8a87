"""Two-stage training of a point-cloud denoiser: a clean stage, then a stage on a new scanner."""
import math
import tempfile
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(29)

CONF = {
    "first": {"lr": 3e-3, "final_lr": 1e-6, "steps": 200, "sigma": 0.15, "squash": 1.0},
    "second": {"lr": 2e-3, "steps": 180, "sigma": 0.3, "squash": 0.4},
    "batch": 64,
}


def outlines(n, points, gen):
    """Closed outlines of machined parts, as points in order of the angle."""
    phi = 2 * math.pi * torch.arange(points) / points
    a = 0.3 * torch.randn(n, 3, generator=gen)
    r = 1.0 + a[:, :1] * torch.cos(2 * phi) + a[:, 1:2] * torch.sin(3 * phi)
    r = r + 0.5 * a[:, 2:] * torch.cos(phi)
    return torch.stack([r * torch.cos(phi), r * torch.sin(phi)], 2)


def scan(shape, sigma, squash, gen):
    """The scanner squashes one axis, turns the part a little and adds noise."""
    turn = torch.tensor(0.8 * (1 - squash))
    rot = torch.stack([
        torch.stack([turn.cos(), -turn.sin()]), torch.stack([turn.sin(), turn.cos()])
    ])
    bent = (shape * torch.tensor([1.0, squash])) @ rot.T
    return bent + sigma * torch.randn(shape.shape, generator=gen)


class Denoiser(nn.Module):
    def __init__(self, points=16, width=96):
        super().__init__()
        d = 2 * points
        self.net = nn.Sequential(
            nn.Linear(d, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, d)
        )

    def forward(self, x):
        return x + self.net(x.flatten(1)).view_as(x)


def save(path, model, opt, step):
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step}, path)


def first_stage(shapes, path, gen):
    c = CONF["first"]
    model = Denoiser()
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"])
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, c["steps"], eta_min=c["final_lr"])
    for step in range(c["steps"]):
        x = shapes[torch.randint(0, len(shapes), (CONF["batch"],), generator=gen)]
        loss = F.mse_loss(model(scan(x, c["sigma"], c["squash"], gen)), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
    print(f"first stage: loss {loss.item():.5f}")
    save(path, model, opt, c["steps"])


def second_stage(shapes, val, path, gen):
    """Continue on scans of the new device, with the moments of the first stage."""
    c = CONF["second"]
    model = Denoiser()
    opt = torch.optim.AdamW(model.parameters(), lr=c["lr"])
    ckpt = torch.load(path)
    model.load_state_dict(ckpt["model"])
    opt.load_state_dict(ckpt["opt"])
    noisy_val = scan(val, c["sigma"], c["squash"], torch.Generator().manual_seed(1))
    for step in range(c["steps"] + 1):
        if step % 60 == 0:
            with torch.no_grad():
                v = F.mse_loss(model(noisy_val), val).item()
            print(f"second stage: step {ckpt['step'] + step} val {v:.5f}")
        if step == c["steps"]:
            return v
        x = shapes[torch.randint(0, len(shapes), (CONF["batch"],), generator=gen)]
        loss = F.mse_loss(model(scan(x, c["sigma"], c["squash"], gen)), x)
        opt.zero_grad()
        loss.backward()
        opt.step()


def main():
    gen = torch.Generator().manual_seed(290)
    shapes, val = outlines(2000, 16, gen), outlines(400, 16, gen)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stage1.pt"
        first_stage(shapes, path, gen)
        result = second_stage(shapes, val, path, gen)
    print(f"RESULT {result:.6f}")


if __name__ == "__main__":
    main()
