"""Targets that are mirrored or turned apart from their inputs, as by two random augmentations.

After training, a prediction fits the target of its own sample better than the mirrored target, even
if the model knows little. If the mirrored one fits far better for a good part of the samples, then
these have a target of another orientation than their input. Targets of other samples, each turned
as it fits best, show whether the model has learned anything at all.

A model that only sees such pairs learns the mean of both orientations, which fits both. Therefore
inputs and targets are also compared with each other: where they are correlated, such as a bright
organ and its mask, the correlation of the mirrored target is higher for a good part of the samples,
and that of their own for another part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from halfstep.doctor.record.answers import Turned
from halfstep.doctor.replay.influence.losses import losses, overlaps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from halfstep.doctor.replay.influence.forwards import Forwards
    from halfstep.doctor.replay.influence.losses import Loss

    _Turn = tuple[str, Callable[[torch.Tensor], torch.Tensor]]

_FEWEST, _SIDE = 8, 6
"""Samples, and positions along a side, from which on a batch is examined."""
_ELEMENTS = 4_000_000
_BETTER = 0.7  # of the loss of a sample with its own target
_MANY = 0.15  # of the samples
_LEARNED = 0.7  # of the loss with targets of other samples, turned as they fit best
_CORRELATED, _MORE = 0.4, 0.2
"""A correlation of an input with a target from which on it is clear, and by which it is higher."""
_SEVERAL = 3  # samples
_TURNS: tuple[_Turn, ...] = (
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
        is_square = targets.shape[-1] == targets.shape[-2]
        turns = _TURNS if is_square else _TURNS[:_OF_SQUARES]
        own, best, its = _fits(loss, targets, turns)
        if own.min() < 0:  # Targets that are no probabilities: shares of such a loss say nothing.
            continue
        better = [int((each < _BETTER * own).sum()) for each in its]
        count = max(better)
        other = _fits(loss, targets.roll(1, 0), turns)[1]
        if count >= _MANY * len(own) and best.mean() < _LEARNED * other.mean():
            how, _ = turns[better.index(count)]
            means = float(own.mean()), float(best.mean())
            yield Turned(how, count, len(own), "mean loss", *means, loss.site)
            return
        yield from _against(forwards.inputs.values(), loss)


def _fits(
    loss: Loss, targets: torch.Tensor, turns: Sequence[_Turn]
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Return the loss of each sample with its target, with the best turn of it, and with each."""
    own = _each(loss, targets)
    its = [_each(loss, turn(targets)) for _, turn in turns]
    return own, torch.stack([own, *its]).amin(0), its


def _against(inputs: Iterable[torch.Tensor], loss: Loss) -> Iterator[Turned]:
    """Yield the loss if some inputs fit their targets as they are, and others mirrored ones."""
    for images in inputs:
        targets = loss.targets
        if images.ndim < 3 or not images.is_floating_point() or len(images) != len(targets):
            continue
        if images.shape[-2:] != targets.shape[-2:] or images.numel() > _ELEMENTS:
            continue
        if loss.is_of_classes:
            targets = (targets != targets.flatten().mode().values).float()
        standard = _standardised(images)
        own = _correlation(standard, _standardised(targets))
        mirrored = {
            how: _correlation(standard, _standardised(turn(targets)))
            for how, turn in _TURNS[:_OF_SQUARES]
        }
        best = torch.stack([*mirrored.values()]).amax(0)
        right = (own >= _CORRELATED) & (own >= best + _MORE)
        wrong = (best >= _CORRELATED) & (best >= own + _MORE)
        if min(int(right.sum()), int(wrong.sum())) >= max(_SEVERAL, _MANY * len(own)):
            counts = {how: int((wrong & (its == best)).sum()) for how, its in mirrored.items()}
            means = float(own.mean()), float(torch.maximum(own, best).mean())
            yield Turned(
                max(counts, key=counts.__getitem__),
                int(wrong.sum()),
                len(own),
                "mean correlation with the input",
                *means,
                loss.site,
            )
            return


def _standardised(images: torch.Tensor) -> torch.Tensor:
    """Return the channels of each sample with mean 0 and norm 1: (samples, channels, elements)."""
    channels = images.double().reshape(len(images), -1, images.shape[-2] * images.shape[-1])
    return functional.normalize(channels - channels.mean(-1, keepdim=True), dim=-1)


def _correlation(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the largest correlation of a channel with a channel of the target, by sample."""
    return (images @ targets.mT).abs().flatten(1).amax(1)


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
