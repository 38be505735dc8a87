"""A 3D U-Net for segmentation, as MONAI's tutorials train it: Dice loss, sliding windows."""

from __future__ import annotations

import sys

import numpy as np
import torch
from clock import mark
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

STEPS = int(sys.argv[1])
SIZE, PATCH, BATCH, PER_EPOCH = 40, 24, 2, 12


class Unit(nn.Module):
    """A residual unit of two convolutions with instance norm and PReLU."""

    def __init__(self, given: int, made: int, stride: int = 1) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        for number, (before, step) in enumerate([(given, stride), (made, 1)]):
            self.layers.add_module(
                f"unit{number}",
                nn.Sequential(
                    nn.Conv3d(before, made, 3, stride=step, padding=1),
                    nn.InstanceNorm3d(made),
                    nn.Dropout(0.1),
                    nn.PReLU(),
                ),
            )
        self.residual = nn.Conv3d(given, made, 3, stride=stride, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features of the unit."""
        return self.layers(x) + self.residual(x)


class Level(nn.Module):
    """A level of the U-Net, around the levels below it."""

    def __init__(self, given: int, made: int, channels: list[int]) -> None:
        super().__init__()
        first, rest = channels[0], channels[1:]
        self.down = Unit(given, first, 2)
        self.below = Level(first, first, rest) if len(rest) > 1 else Unit(first, rest[0])
        joined = 2 * first if len(rest) > 1 else first + rest[0]
        self.up = nn.Sequential(
            nn.ConvTranspose3d(joined, made, 3, stride=2, padding=1, output_padding=1),
            nn.InstanceNorm3d(made),
            nn.PReLU(),
            Unit(made, made),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features at the resolution of the input."""
        x = self.down(x)
        return self.up(torch.cat([x, self.below(x)], dim=1))


class Volumes(Dataset):
    """Volumes with balls, as an image, a label and affine metadata; cropped and flipped."""

    def __init__(self, number: int, *, train: bool) -> None:
        self.number, self.train = number, train

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        draws = np.random.default_rng(index)
        grid = np.stack(np.meshgrid(*[np.arange(SIZE)] * 3, indexing="ij"))
        label = np.zeros((SIZE,) * 3, dtype=np.float32)
        for _ in range(4):
            center, radius = draws.uniform(6, SIZE - 6, 3), draws.uniform(3, 7)
            label[((grid - center[:, None, None, None]) ** 2).sum(0) < radius**2] = 1
        image = torch.from_numpy(label + draws.normal(0, 0.4, label.shape).astype(np.float32))[None]
        target = torch.from_numpy(label)[None]
        image = (image - image.min()) / (image.max() - image.min())
        if self.train:
            corner = draws.integers(0, SIZE - PATCH, 3)
            cut = (slice(None), *[slice(each, each + PATCH) for each in corner])
            image, target = image[cut], target[cut]
            for axis in (1, 2, 3):
                if draws.random() < 0.5:
                    image, target = image.flip(axis), target.flip(axis)
            image = image * (1 + 0.1 * draws.uniform(-1, 1)) + 0.1 * draws.uniform(-1, 1)
        return {"image": image.contiguous(), "label": target.contiguous(), "affine": torch.eye(4)}


class DiceLoss(nn.Module):
    """Soft Dice and cross entropy."""

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        one_hot = functional.one_hot(target[:, 0].long(), 2).movedim(-1, 1).float()
        shares = logits.softmax(dim=1)
        axes = (2, 3, 4)
        both = (shares * one_hot).sum(axes)
        dice = 1 - (2 * both + 1e-5) / (shares.sum(axes) + one_hot.sum(axes) + 1e-5)
        return dice.mean() + functional.cross_entropy(logits, target[:, 0].long())


def by_windows(image: torch.Tensor, model: nn.Module) -> torch.Tensor:
    """Return the logits of a volume by overlapping windows."""
    out = torch.zeros(1, 2, *image.shape[2:])
    count = torch.zeros(1, 1, *image.shape[2:])
    starts = range(0, SIZE - PATCH + 1, 16)
    for a in starts:
        for b in starts:
            for c in starts:
                cut = (..., slice(a, a + PATCH), slice(b, b + PATCH), slice(c, c + PATCH))
                out[cut] += model(image[cut])
                count[cut] += 1
    return out / count


def main() -> None:
    """Train for the steps of the command line, with a validation after each epoch."""
    mark("train")
    torch.manual_seed(0)
    model = Level(1, 2, [8, 16, 32])
    loss_function = DiceLoss()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    train = DataLoader(Volumes(BATCH * PER_EPOCH, train=True), BATCH, shuffle=True)
    validation = DataLoader(Volumes(1, train=False), 1)
    taken, best = 0, -1.0
    while taken < STEPS:
        model.train()
        total = 0.0
        for batch in train:
            image, label = batch["image"].to("cpu"), batch["label"].to("cpu")
            optimizer.zero_grad()
            loss = loss_function(model(image), label)
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
            taken += 1
            if taken == STEPS:
                break
        model.eval()
        scores = []
        with torch.no_grad():
            for batch in validation:
                found = by_windows(batch["image"], model).argmax(1, keepdim=True)
                label = batch["label"]
                scores.append(2 * (found * label).sum() / (found.sum() + label.sum()))
        score = torch.stack(scores).mean().item()
        best = max(best, score)
        print(taken, total, score, best)
    mark("end")


main()
