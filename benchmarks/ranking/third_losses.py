"""Losses of the third set of tasks, and tasks that have a loss and a batch size of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from ranking.tasks import Task
from ranking.third_data import LENGTH, SAID

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Judged(Task):
    """A task with a loss and a batch size of its own.

    Attributes:
        criterion: The mean loss of what is found (in fp32) and the targets.
        size: Samples of a batch.
    """

    criterion: Criterion
    size: int

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the mean loss of a batch."""
        return self.criterion(model(batch[0]).float(), batch[1])

    def batches(self, seed: int, steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return batches drawn at random."""
        chance = torch.Generator().manual_seed(seed)
        picked = torch.randint(0, len(self.inputs), (steps, self.size), generator=chance)
        return [(self.inputs[each], self.targets[each]) for each in picked]


def classes(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each of the logits, (..., classes)."""
    return functional.cross_entropy(found.flatten(0, -2), wanted.flatten())


def squares(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of (N, 1)."""
    return functional.mse_loss(found[:, 0], wanted)


def huber(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return squares up to an error of 2000, and absolute errors past it."""
    return functional.huber_loss(found, wanted, delta=2000.0)


def dice(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return cross-entropy plus one less the Dice coefficient of each image."""
    sure = found.sigmoid()
    both, either = (sure * wanted).sum((1, 2, 3)), (sure + wanted).sum((1, 2, 3))
    missed = 1 - (2 * both + 1) / (either + 1)
    return functional.binary_cross_entropy_with_logits(found, wanted) + missed.mean()


def evidence(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the negative lower bound of the evidence, in nats of an image."""
    logits, mean, log_variance = found.split([64, 8, 8], 1)
    lost = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
    apart = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum()
    return (lost + apart) / len(found)


def triplets(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return by how much the like one is not nearer than the other by 1."""
    anchor, alike, other = found.unbind(1)
    near, far = ((anchor - each).square().sum(1) for each in (alike, other))
    return (functional.relu(near - far + 1) + wanted).mean()


def ctc(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the CTC loss, per letter."""
    logs = found.log_softmax(-1).transpose(0, 1)
    steps, letters = (torch.full((len(wanted),), size) for size in (LENGTH, SAID))
    return functional.ctc_loss(logs, wanted, steps, letters)


def mean(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the mean of what is a loss already."""
    return (found - wanted).mean()


def unlikely(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the mean negative log-likelihood."""
    return (wanted - found).mean()


def quantiles(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the pinball loss of three quantiles, (N, 3)."""
    levels = found.new_tensor([0.05, 0.5, 0.95])
    missed = wanted[:, None] - found
    return torch.maximum(levels * missed, (levels - 1) * missed).mean()


def rare(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return binary cross-entropy in which a rare positive weighs 20 times."""
    weight = found.new_tensor(20.0)
    return functional.binary_cross_entropy_with_logits(found[:, 0], wanted, pos_weight=weight)


def residual(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the squared residual of an equation and of its ends, which are zero."""
    return functional.mse_loss(found[:, 0], wanted) + 10 * found[:, 1:].square().mean()


def listed(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return how unlikely the given order is, drawn without replacement, per document."""
    left = found.flip(1).logcumsumexp(1).flip(1)
    return ((left - found).mean(1) + wanted).mean()
