"""Targets that are mirrored or turned apart from their inputs, as by two random augmentations.

After training, a prediction fits the target of its own sample better than the mirrored target, even
if the model knows little. If the mirrored one fits far better for a good part of the samples, then
these have a target of another orientation than their input. Targets of other samples show whether
the model has learned anything at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from halfstep.doctor.record.answers import Turned
from halfstep.doctor.replay.influence.losses import losses, overlaps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfstep.doctor.replay.influence.forwards import Forwards
    from halfstep.doctor.replay.influence.losses import Loss

_FEWEST, _SIDE = 8, 6
"""Samples, and positions along a side, from which on a batch is examined."""
_ELEMENTS = 4_000_000
_BETTER = 0.7  # of the loss of a sample with its own target
_MANY = 0.15  # of the samples
_LEARNED = 0.6  # of the loss with targets of other samples
_TURNS: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("mirrored along the last dimension", lambda each: each.flip(-1)),
    ("mirrored along the last dimension but one", lambda each: each.flip(-2)),
    ("turned by half a turn", lambda each: each.flip((-1, -2))),
    ("turned by a quarter of a turn", lambda each: each.rot90(1, (-2, -1))),
    ("turned by three quarters of a turn", lambda each: each.rot90(3, (-2, -1))),
)
_OF_SQUARES = 3  # from this one on, they need as many rows as columns


def turned(forwards: Forwards) -> Iterator[Turned]:
    """Yield the losses with such targets."""
    for loss in (*losses(forwards.base), *overlaps(forwards.base)):
        targets = loss.targets
        is_dense = targets.ndim >= 3 and min(targets.shape[-2:]) >= _SIDE
        if not is_dense or len(targets) < _FEWEST or loss.predictions.numel() > _ELEMENTS:
            continue
        if not loss.is_of_classes and loss.predictions.shape != targets.shape:
            continue
        own, other = _each(loss, targets), _each(loss, targets.roll(1, 0))
        if own.min() < 0:  # Targets that are no probabilities: shares of such a loss say nothing.
            continue
        is_square = targets.shape[-1] == targets.shape[-2]
        for how, turn in _TURNS if is_square else _TURNS[:_OF_SQUARES]:
            its = _each(loss, turn(targets))
            count = int((its < _BETTER * own).sum())
            is_learned = float(torch.minimum(own, its).mean()) < _LEARNED * float(other.mean())
            if is_learned and count >= _MANY * len(own):
                means = float(own.mean()), float(torch.minimum(own, its).mean())
                yield Turned(how, count, len(own), *means, loss.site)
                return


def _each(loss: Loss, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of each sample with some targets, without its weights."""
    predictions = loss.predictions
    if loss.is_of_classes:
        ignored = loss.ignored
        assert ignored is not None
        found = functional.nll_loss(predictions, targets, reduction="none", ignore_index=ignored)
    elif loss.operator.name == "binary_cross_entropy_with_logits":
        found = functional.binary_cross_entropy_with_logits(predictions, targets, reduction="none")
    else:
        found = (predictions - targets).square()
    return found.double().flatten(1).mean(1)
