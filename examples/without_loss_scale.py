"""Pure half precision without a loss scale: where it fails, and where it does not.

A small network learns scikit-learn's digits under seven recipes, from the same initial weights and
on the same batches, in three settings:

- `sgd`: plain SGD. Every recipe trains.
- `small loss`: the loss is multiplied by 1e-4 and the learning rate by 1e4. In exact arithmetic,
  the updates are the same. In fp16, gradients underflow, and recipes without a loss scale reach a
  lower accuracy.
- `adamw`: AdamW with its default eps of 1e-8, which is zero in fp16. An optimizer that works on
  fp16 parameters divides by zero, and the loss is NaN at the second step.

    python examples/without_loss_scale.py    # about ten seconds
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F  # noqa: N812  (torch's own custom)

from halfstep import Engine

RECIPES = ("fp32", "half", "half-bn32", "o3", "o1", "o2", "fp16")
STEPS = 100
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Setting:
    """A setting: the optimizer, its learning rate, and a factor of the loss."""

    optimizer: type[torch.optim.Optimizer]
    lr: float
    loss_factor: float = 1.0


SETTINGS = {
    "sgd": Setting(torch.optim.SGD, 0.1),
    "small loss": Setting(torch.optim.SGD, 1000.0, loss_factor=1e-4),
    "adamw": Setting(torch.optim.AdamW, 1e-3),
}


@dataclass(frozen=True)
class Outcome:
    """The result of a run: validation accuracy, and the first step with a non-finite loss."""

    accuracy: float
    nonfinite_step: int | None


def digits() -> list[torch.Tensor]:
    """Return training images, validation images, training labels, validation labels."""
    scans = load_digits()
    images = torch.tensor(scans.data, dtype=torch.float32, device=DEVICE)
    images = (images - images.mean()) / images.std()
    labels = torch.tensor(scans.target, device=DEVICE)
    train, valid = train_test_split(
        range(len(labels)), test_size=0.25, stratify=scans.target, random_state=0
    )
    return [images[train], images[valid], labels[train], labels[valid]]


def train(
    recipe: str, setting: Setting, data: list[torch.Tensor], *, steps: int = STEPS
) -> Outcome:
    """Train one network and return the result."""
    images, valid_images, labels, valid_labels = data
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for width in (64, 64, 64, 64):
        layers += [nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(64, 10)).to(DEVICE)
    momentum = {"momentum": 0.9} if setting.optimizer is torch.optim.SGD else {}
    optimizer = setting.optimizer(network.parameters(), lr=setting.lr, **momentum)
    order = torch.Generator().manual_seed(0)
    nonfinite_step = None
    with Engine(network, optimizer, recipe=recipe, nonfinite="apply") as engine:
        for step in range(1, steps + 1):
            chosen = torch.randint(0, len(labels), (128,), generator=order).to(DEVICE)
            with engine.autocast():
                loss = F.cross_entropy(engine.model(images[chosen]).float(), labels[chosen])
                loss = loss * setting.loss_factor
            engine.backward(loss)
            engine.step()
            if nonfinite_step is None and not math.isfinite(loss.item()):
                nonfinite_step = step
        with engine.evaluating():
            guesses = engine.model(valid_images).argmax(1)
    return Outcome((guesses == valid_labels).float().mean().item(), nonfinite_step)


def main() -> None:
    """Train every recipe in every setting and print the table."""
    torch.set_num_threads(1)  # Several threads would add numbers in another order.
    data = digits()
    print(f"{'setting':<12}" + "".join(f"{recipe:>16}" for recipe in RECIPES))
    for name, setting in SETTINGS.items():
        cells = []
        for recipe in RECIPES:
            outcome = train(recipe, setting, data)
            nan = outcome.nonfinite_step
            cells.append(f"NaN at step {nan}" if nan else f"{outcome.accuracy:.1%}")
        print(f"{name:<12}" + "".join(f"{cell:>16}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
