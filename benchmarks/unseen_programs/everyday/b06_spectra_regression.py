"""Estimate compound concentrations from absorption spectra with a residual MLP."""
import argparse
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(66)

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--warmup", type=int, default=12)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.043)
parser.add_argument("--depth", type=int, default=6)
args = parser.parse_args([])

BANDS, COMPOUNDS = 80, 8


def make_spectra(n):
    g = torch.Generator().manual_seed(1)
    centre = torch.rand(COMPOUNDS, 2, generator=g) * BANDS
    width = 2 + 4 * torch.rand(COMPOUNDS, 2, generator=g)
    band = torch.arange(BANDS).float()
    peaks = torch.exp(-0.5 * ((band - centre[..., None]) / width[..., None]) ** 2).sum(1)
    conc = torch.rand(n, COMPOUNDS)
    absorb = conc @ peaks
    spectra = 1 - torch.exp(-absorb) + 0.01 * torch.randn(n, BANDS)
    return spectra, conc


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, h):
        return h + self.fc2(torch.relu(self.fc1(h)))


def build(depth, width=96):
    blocks = [Block(width) for _ in range(depth)]
    return nn.Sequential(nn.Linear(BANDS, width), *blocks, nn.Linear(width, COMPOUNDS))


def lr_factor(step):
    if step < args.warmup:
        return (step + 1) / args.warmup
    progress = (step - args.warmup) / max(1, args.steps - args.warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def spectrum_loss(pred, target):
    return ((pred - target) ** 2).sum(dim=1).mean()


def main():
    x, y = make_spectra(3000)
    vx, vy = make_spectra(600)
    mu, sd = x.mean(0), x.std(0)
    x, vx = (x - mu) / sd, (vx - mu) / sd
    model = build(args.depth)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24)

    for step in range(args.steps):
        idx = torch.randint(0, len(x), (args.batch,))
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = spectrum_loss(model(x[idx]), y[idx])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        if step % 20 == 0:
            lr = optimizer.param_groups[0]["lr"]
            print(f"{step} loss {loss.item():.4f} lr {lr:.4f} scale {scaler.get_scale():.0f}")

    model.eval()
    with torch.no_grad():
        print(f"RESULT {spectrum_loss(model(vx), vy).item():.5f}")


if __name__ == "__main__":
    main()
