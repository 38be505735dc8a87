"""A second `optimizer.step()` in a torch.amp loop: ResNet-18 on pictures of leaves.

This program reconstructs its author's training loop without halfstep: fp16 autocast, a gradient
scaler, and an `optimizer.step()` that was left over from fp32. Its argument is the folder of the
Kaggle competition "classify-leaves", which contains train.csv and images/:

    python examples/leaves_double_step.py classify-leaves
    halfstep doctor examples/leaves_double_step.py classify-leaves
    python examples/leaves_double_step.py classify-leaves --mended
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import timm
import torch
from torch.nn import functional as F  # noqa: N812  (torch's own custom)
from torchvision.io import ImageReadMode, read_image
from torchvision.transforms.functional import resize

BATCH = 16
PIXELS = 64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def pictures(folder: Path, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random pictures of train.csv, standardised, and the numbers of their species."""
    with (folder / "train.csv").open() as file:
        rows = list(csv.DictReader(file))
    species = sorted({row["label"] for row in rows})
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    chosen = [rows[index] for index in order[:count]]
    images = torch.stack(
        [
            resize(read_image(str(folder / row["image"]), ImageReadMode.RGB), [PIXELS, PIXELS])
            for row in chosen
        ]
    ).to(DEVICE, torch.float32)
    labels = torch.tensor([species.index(row["label"]) for row in chosen], device=DEVICE)
    return (images - images.mean()) / images.std(), labels


def main(arguments: list[str] | None = None) -> list[float]:
    """Train, print the loss of every step, and return the losses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="holds train.csv and images/")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--mended", action="store_true", help="without the second step")
    given = parser.parse_args(arguments)

    images, labels = pictures(given.folder, BATCH * given.steps)
    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=176).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scaler = torch.amp.GradScaler(DEVICE)
    losses = []
    for step in range(given.steps):
        batch = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = F.cross_entropy(model(images[batch]), labels[batch], reduction="sum")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        if not given.mended:
            optimizer.step()
        scaler.update()
        losses.append(loss.item() / BATCH)
        print(f"step {step + 1}: loss {losses[-1]:.3f}, loss scale {scaler.get_scale():.0f}")
    return losses


if __name__ == "__main__":
    main()
