"""Diffusion models whose training hardly adds noise at the last noise level.

A sampler begins with nothing but noise. The network has learned to expect that only if the noise
that it is trained to predict makes up nearly all of its input at the last level. The correlation of
this noise with the input tells how much of it there is, whatever the schedule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.answers import WeakNoise
from halfstep.doctor.replay.influence.drowned import is_noise
from halfstep.doctor.replay.influence.losses import OF_CLASSES, losses
from halfstep.doctor.tensors.inexact import is_inexact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.replay.influence.forwards import Forwards

_LAST = 0.75
"""The quantile of the levels of a batch from which on they are the last ones."""
_FEWEST, _LEVELS = 64, 8
_PART = 0.1
"""The least correlation at which the input holds the noise."""


def weak_noise(forwards: Forwards) -> Iterator[WeakNoise]:
    """Yield the loss of a step whose targets are the noise in its inputs.

    Args:
        forwards: The forward of the step.
    """
    given = [*forwards.inputs.values()]
    for loss in losses(forwards.base):
        noise = loss.targets
        if loss.operator.name in OF_CLASSES or not is_inexact(noise) or not is_noise(noise):
            continue
        noisy = next(
            (each for each in given if each.shape == noise.shape and is_inexact(each)), None
        )
        levels = next((each for each in given if each.numel() == len(noise) > 1), None)
        if noisy is None or levels is None or len(levels.unique()) < _LEVELS:
            continue
        order = levels.reshape(-1).double()
        top = order >= order.quantile(_LAST)
        if int(top.sum()) * noise[0].numel() < _FEWEST:
            continue
        found = _correlation(noisy[top], noise[top])
        if found > max(_PART, _correlation(noisy[~top], noise[~top])):
            yield WeakNoise(found, float(order.max()), loss.site)
            return


def _correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    pair = torch.stack([one.detach().double().reshape(-1), other.double().reshape(-1)])
    return float(torch.corrcoef(pair)[0, 1])
