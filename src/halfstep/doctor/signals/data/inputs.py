"""How large the inputs of a model are in training and in evaluation.

Inputs that are scaled or normalised in one of them only have another mean and another deviation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar

import torch

from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.signals.data.rows import Rows

_WIDEST = 4  # elements of a row, at least: of fewer, another range may be meant
_ROWS = 16
_APART = 2.0  # nats, the Kullback-Leibler divergence of two normal distributions
_WIDTH = 2.563
"""Standard deviations between the 10 % and the 90 % quantile of a normal distribution."""
_MOST = 1000.0  # times the deviation: pixels from 0 to 255 in place of normalised ones


@dataclass(frozen=True, slots=True)
class InputScale:
    """The inputs of a model whose evaluations are all given other inputs than its training.

    Attributes:
        model: Number of the model.
        mean: Mean of the inputs in training.
        deviation: Standard deviation of these.
        evaluated_mean: Mean of the inputs in evaluation.
        evaluated_deviation: Standard deviation of these.
        calls: Number of the evaluations.
        training: The line of the training calls.
        site: The line of the evaluations.
    """

    model: int
    mean: float
    deviation: float
    evaluated_mean: float
    evaluated_deviation: float
    calls: int
    training: Site | None
    site: Site | None


@dataclass(frozen=True, slots=True)
class InputScales:
    """All such models."""

    signal: ClassVar[str] = "inputs_of_phases"
    models: tuple[InputScale, ...] = ()


def input_scales(training: Sequence[Rows], evaluations: Sequence[Rows]) -> InputScales:
    """Return the models whose evaluations are all given other inputs than their training."""
    trained: defaultdict[int, list[Rows]] = defaultdict(list)
    for each in training:
        trained[each.model].append(each)
    # What another model has made may be of another size on purpose, such as a draw and its mean.
    lead = {model for model, rows in trained.items() if all(each.leads for each in rows)}
    evaluated: defaultdict[int, list[Rows]] = defaultdict(list)
    for each in evaluations:
        if each.step:  # Before the first step, a model is only probed.
            evaluated[each.model].append(each)
    found = [
        _compared(model, trained[model], calls)
        for model, calls in evaluated.items()
        if model in lead
    ]
    return InputScales(tuple(each for each in found if each is not None))


def _compared(model: int, training: list[Rows], evaluations: list[Rows]) -> InputScale | None:
    calls = [*training, *evaluations]
    rows = min(sum(len(each.inputs[0]) for each in mine) for mine in (training, evaluations))
    if (
        rows < _ROWS
        or not all(each.alone and each.inputs[0].is_floating_point() for each in calls)
        or min(each.width for each in calls) < _WIDEST
        or (any(each.training for each in evaluations) and len({e.step for e in evaluations}) < 2)
    ):
        return None
    mean, deviation = _moments(training)
    lines: defaultdict[Mark | None, list[Rows]] = defaultdict(list)
    for each in evaluations:
        lines[each.mark].append(each)
    if not all(_apart((mean, deviation), _moments(mine)) > _APART for mine in lines.values()):
        return None
    middles = _middle(training), _middle(evaluations)
    if min(middles[0][1], middles[1][1]) > 0 and _apart(*middles) <= _APART:
        return None  # A few large samples in one of them, such as bursts.
    apart = [_apart((mean, deviation), _moments([each])) > _APART for each in evaluations]
    if not all(apart):
        return None  # Such as other data among the same kind of data.
    its_mean, its_deviation = _moments(evaluations)
    return InputScale(
        model,
        mean,
        deviation,
        its_mean,
        its_deviation,
        len(evaluations),
        site(training[-1].mark),
        site(evaluations[0].mark),
    )


def _moments(calls: Sequence[Rows]) -> tuple[float, float]:
    values = torch.cat([each.inputs[0].reshape(-1).cpu().double() for each in calls])
    return values.mean().item(), values.std(correction=0).item()


def _middle(calls: Sequence[Rows]) -> tuple[float, float]:
    """Return mean and deviation of the normal distribution with the same outer quantiles."""
    values = torch.cat([each.inputs[0].reshape(-1).cpu().double() for each in calls])
    low, high = values.quantile(torch.tensor([0.1, 0.9], dtype=torch.float64)).tolist()
    return (low + high) / 2, (high - low) / _WIDTH


def _apart(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return how far two normal distributions are apart; 0 if no scale relates them."""
    low, high = sorted((one[1], other[1]))
    if low <= 0 or high > _MOST * low or not all(map(math.isfinite, (*one, *other))):
        return 0.0
    return max(_divergence(one, other), _divergence(other, one))


def _divergence(of: tuple[float, float], base: tuple[float, float]) -> float:
    ratio = of[1] / base[1]
    shift = (of[0] - base[0]) / base[1]
    return (ratio**2 + shift**2 - 1) / 2 - math.log(ratio)
