"""Segmentation with `halfstep.fit`: which pixels belong to a disc, in noisy pictures made here.

python examples/segmentation.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryJaccardIndex

import halfstep

PIXELS = 16


def pictures(count: int, seed: int) -> TensorDataset:
    """Return pictures (1, 16, 16) and the masks of their discs, 0 or 1, of the same shape."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randint(4, PIXELS - 4, (count, 2, 1, 1), generator=generator)
    radii = torch.randint(2, 5, (count, 1, 1), generator=generator)
    rows, columns = torch.meshgrid(torch.arange(PIXELS), torch.arange(PIXELS), indexing="ij")
    squares = (rows - centres[:, 0]) ** 2 + (columns - centres[:, 1]) ** 2
    masks = (squares <= radii**2)[:, None].float()
    return TensorDataset(masks + 0.5 * torch.randn(masks.shape, generator=generator), masks)


class Net(nn.Module):
    """A small U-Net: one step down, one step up, and a shortcut between."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width))
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = nn.Conv2d(2 * width, 1, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a logit for each pixel, shape (batch, 1, height, width)."""
        fine = self.first(images).relu()
        coarse = self.up(self.down(fine).relu())
        return self.last(torch.cat([fine, coarse], 1))


def main() -> Any:
    """Train, print the overlap of masks and predictions, and return the result."""
    torch.manual_seed(0)
    model = Net()
    with tempfile.TemporaryDirectory() as out:
        fitted = halfstep.fit(
            model,
            torch.optim.AdamW(model.parameters(), lr=0.02),
            DataLoader(pictures(128, seed=1), 16, shuffle=True),
            DataLoader(pictures(64, seed=2), 64),
            loss=nn.functional.binary_cross_entropy_with_logits,
            metrics={"iou": BinaryJaccardIndex()},
            monitor="iou",
            recipe="fp16",
            epochs=4,
            out=out,
        )
    print(f"intersection over union {fitted.best['iou']:.2f}")
    return fitted


if __name__ == "__main__":
    main()
