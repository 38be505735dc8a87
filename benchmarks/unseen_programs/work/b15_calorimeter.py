"""Regress the depth of showers from calorimeter cells that are read from run files."""
import tempfile
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(18)

LAYERS, CELLS = 12, 12


def simulate(n, gen):
    """ADC counts of electron showers with a depth between 2 and 9 layers."""
    depth = 2 + 7 * torch.rand(n, generator=gen)
    width = 0.9 + 0.5 * torch.rand(n, generator=gen)
    energy = 40_000 + 160_000 * torch.rand(n, generator=gen)
    offset = 3 + 5 * torch.rand(n, generator=gen)
    z = torch.arange(LAYERS).float()
    y = torch.arange(CELLS).float()
    along = torch.exp(-0.5 * ((z[None] - depth[:, None]) / 2.2) ** 2)
    across = torch.exp(-0.5 * ((y[None] - offset[:, None]) / (2 * width[:, None])) ** 2)
    shape = along[:, :, None] * across[:, None, :]
    shape = shape / shape.sum((1, 2), keepdim=True)
    counts = energy[:, None, None] * shape
    counts = counts + counts.sqrt() * 2 * torch.randn(counts.shape, generator=gen)
    return counts.clamp(0, 16_000).flatten(1), depth


class ShowerFile:
    """Stores runs on disk in fp16 and reads them back in chunks."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def write(self, name, counts, depth):
        torch.save({"counts": counts.half(), "depth": depth}, self.folder / f"{name}.pt")

    def read(self, name):
        run = torch.load(self.folder / f"{name}.pt")
        return run["counts"], run["depth"]


def fractions(counts):
    """Share of the total signal in each cell, times the number of cells."""
    total = counts.sum(dim=1, keepdim=True)
    return counts.float() / total.float() * counts.shape[1]


def build(width=64):
    return nn.Sequential(
        nn.Linear(LAYERS * CELLS, width), nn.ELU(), nn.Linear(width, width), nn.ELU(),
        nn.Linear(width, 1),
    )


def main():
    gen = torch.Generator().manual_seed(181)
    with tempfile.TemporaryDirectory() as folder:
        store = ShowerFile(folder)
        store.write("train", *simulate(3000, gen))
        store.write("val", *simulate(600, gen))
        counts, depth = store.read("train")
        v_counts, v_depth = store.read("val")

    model = build()
    opt = torch.optim.NAdam(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [180, 260], gamma=0.3)

    @torch.no_grad()
    def rms_error():
        pred = 5.5 + model(fractions(v_counts)).squeeze(1)
        return (pred - v_depth).pow(2).mean().sqrt().item()

    for step in range(320):
        pick = torch.randint(0, len(counts), (64,), generator=gen)
        pred = 5.5 + model(fractions(counts[pick])).squeeze(1)
        loss = F.smooth_l1_loss(pred, depth[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 80 == 0:
            print(f"step {step} loss {loss.item():.4f} rms error {rms_error():.4f} layers")
    print(f"RESULT {rms_error():.5f}")


if __name__ == "__main__":
    main()
