"""Optimizers whose steps, all together, hardly move weights that should learn."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfstep.doctor.record.measured import Numbers, Sample

_FEWEST = 30  # steps
_FALLS = 0.9  # of the first losses
_NEAR_ZERO = 1e-3  # a loss


@dataclass(frozen=True, slots=True)
class Standstill:
    """An optimizer of new weights under which the loss does not fall.

    Attributes:
        course: The loss at first and at the end, as medians.
        rates: The learning rates, by step as far as they are known.
        updates: Norm of the update relative to that of the weights, by number of a sampled step.
        slope: The norm of the gradient relative to that of the weights, as a median.
        path: The length of all steps together, relative to the norm of the weights.
    """

    course: tuple[float, float]
    rates: Sequence[float]
    updates: dict[int, float]
    slope: float
    path: float


def standstill(
    numbers: Numbers, samples: Iterable[Sample], optimizer: int, steps: int
) -> Standstill | None:
    """Return the movement of weights that have learned nothing.

    Args:
        numbers: The numbers of the steps.
        samples: Measurements of sampled steps.
        optimizer: Index of the optimizer.
        steps: Number of its steps.

    Returns:
        None if the loss falls, or if it is unknown, near 0, or that of weights that were loaded.
    """
    own = [
        each
        for each in samples
        if each.optimizer == optimizer and each.gradient_zeros < 1 and each.relative_update
    ]
    course = numbers.course(optimizer)
    # Weights that were loaded may be good already, and so may a loss near zero.
    if course is None or steps < _FEWEST or not own or any(each.loaded for each in own):
        return None
    if not course[1] >= _FALLS * course[0] > _NEAR_ZERO:
        return None
    by_step: dict[int, list[Sample]] = {}
    for each in sorted(own, key=lambda one: one.iteration):
        by_step.setdefault(each.iteration, []).append(each)
    updates = {place: _whole(each, "relative_update") for place, each in by_step.items()}
    return Standstill(
        course,
        [each.learning_rate for each in numbers.steps if each.optimizer == optimizer],
        updates,
        median(_whole(each, "relative_gradient") for each in by_step.values()),
        _path(updates, steps),
    )


def _path(updates: dict[int, float], steps: int) -> float:
    """Return the length of all steps together; each is as long as the longer sample beside it."""
    first, last = min(updates), max(updates)
    between = sum((b - a) * max(updates[a], updates[b]) for a, b in pairwise(updates))
    return first * updates[first] + between + max(1, steps - last) * updates[last]


def _whole(samples: list[Sample], name: str) -> float:
    """Return a relative size for all parameters together; one alone may be near 0."""
    norm = math.hypot(*(each.norm for each in samples))
    return math.hypot(*(getattr(each, name) * each.norm for each in samples)) / norm if norm else 0
