"""A detector with three losses of different magnitudes, each with its own loss scale.

For every cell of a grid, the network predicts three things: whether the centre of an object is in
the cell, the object's box, and its class. The losses are a focal loss over all cells, and a box
loss and a class loss over the cells with an object. `loss_id=` gives a loss its own loss scale, so
an overflow in one loss does not lower the scale of the others. Gradients are unscaled as they are
accumulated, then clipped and applied together.

The images are synthetic: one bright rectangle or ellipse on noise.

    python examples/detector.py [--recipe fp32]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  (torch's own custom)

from halfstep import Engine

SIZE = 32
STRIDE = 8
CELLS = SIZE // STRIDE
BATCH = 32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Scenes:
    """Images, shape (n, 1, size, size), with one object each.

    Attributes:
        images: The images.
        boxes: Centre, width and height in units of the image, shape (n, 4).
        classes: 0 for a rectangle, 1 for an ellipse.
    """

    images: torch.Tensor
    boxes: torch.Tensor
    classes: torch.Tensor

    @property
    def cells(self) -> torch.Tensor:
        """Number of the cell with the centre of each object, row by row."""
        x, y = (self.boxes[:, :2] * CELLS).long().clamp(max=CELLS - 1).unbind(1)
        return y * CELLS + x


def scenes(count: int) -> Scenes:
    """Draw scenes."""
    sides = 0.25 + 0.25 * torch.rand(count, 2)
    middles = sides / 2 + torch.rand(count, 2) * (1 - sides)
    classes = torch.randint(2, (count,))
    at = (torch.arange(SIZE) + 0.5) / SIZE
    across = (at - middles[:, :1]) / (sides[:, :1] / 2)
    down = (at - middles[:, 1:]) / (sides[:, 1:] / 2)
    rectangle = (across.abs()[:, None, :] <= 1) & (down.abs()[:, :, None] <= 1)
    ellipse = across.square()[:, None, :] + down.square()[:, :, None] <= 1
    shape = torch.where(classes[:, None, None] == 1, ellipse, rectangle)
    images = shape.float()[:, None] + 0.1 * torch.randn(count, 1, SIZE, SIZE)
    return Scenes(images.to(DEVICE), torch.cat([middles, sides], 1).to(DEVICE), classes.to(DEVICE))


def network() -> nn.Sequential:
    """Return a network with seven outputs per cell: object, box, class."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(32, 7, 3, 1, 1)).to(DEVICE)


def at_objects(outputs: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    """Return the outputs of the cells that have an object, shape (n, 7), in fp32."""
    flat = outputs.float().flatten(2)
    return flat.gather(2, cells[:, None, None].expand(-1, 7, 1))[..., 0]


def losses(outputs: torch.Tensor, truth: Scenes) -> dict[str, torch.Tensor]:
    """Return the three losses, each a mean over the batch."""
    here = torch.zeros(len(truth.cells), CELLS * CELLS, device=outputs.device)
    here.scatter_(1, truth.cells[:, None], 1.0)
    found = outputs[:, 0].float().flatten(1)
    plain = F.binary_cross_entropy_with_logits(found, here, reduction="none")
    missed = (here - found.sigmoid()).abs()
    chosen = at_objects(outputs, truth.cells)
    return {
        "object": (missed.square() * plain).sum(1).mean(),
        "box": F.smooth_l1_loss(chosen[:, 1:5].sigmoid(), truth.boxes, beta=0.05),
        "class": F.cross_entropy(chosen[:, 5:], truth.classes),
    }


def overlap(found: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return the intersection over union of each pair of boxes."""

    def corners(boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2

    (low, high), (true_low, true_high) = corners(found), corners(truth)
    both = (torch.minimum(high, true_high) - torch.maximum(low, true_low)).clamp(min=0).prod(1)
    return both / (found[:, 2:].prod(1) + truth[:, 2:].prod(1) - both)


def train(recipe: str, steps: int) -> tuple[float, float]:
    """Return mean overlap and share of correct classes on new scenes, at the most likely cell."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    with Engine(model, optimizer, recipe=recipe, clip_norm=5.0) as engine:
        for _ in range(steps):
            batch = scenes(BATCH)
            with engine.autocast():
                parts = losses(engine.model(batch.images), batch)
            for name, loss in parts.items():
                engine.backward(loss, loss_id=name, retain_graph=name != "class")
            engine.step()
        test = scenes(256)
        with engine.evaluating():
            outputs = engine.model(test.images).float()
    likeliest = outputs[:, 0].flatten(1).argmax(1)
    chosen = at_objects(outputs, likeliest)
    right = (chosen[:, 5:].argmax(1) == test.classes).float().mean().item()
    return overlap(chosen[:, 1:5].sigmoid(), test.boxes).mean().item(), right


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    """Train, and print and return mean overlap and share of correct classes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="fp16")
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args(arguments)
    iou, right = train(options.recipe, options.steps)
    print(f"{options.recipe}: mean overlap {iou:.2f}, {right:.0%} of the classes right")
    return iou, right


if __name__ == "__main__":
    main()
