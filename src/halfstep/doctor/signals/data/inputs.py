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
_MOST_IF_WHOLE = 1e5  # sound of 16 bits in place of that from -1 to 1


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
    places = range(len(training[0].inputs))
    if not all(each.whole and len(each.inputs) == len(places) for each in calls) or (
        any(each.training for each in evaluations) and len({e.step for e in evaluations}) < 2
    ):
        return None
    # Beside an input that stays as it is, such as a time, another one may differ on purpose.
    if not all(_differ(at, training, evaluations) for at in places):
        return None
    mean, deviation = _moments(training)
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


def _differ(at: int, training: list[Rows], evaluations: list[Rows]) -> bool:
    """Return whether all evaluations are given another input in a place."""
    if not all(_is_wide(each.inputs[at]) for each in (*training, *evaluations)):
        return False
    rows = min(sum(len(each.inputs[at]) for each in mine) for mine in (training, evaluations))
    trained = _moments(training, at)
    whole = any(_are_whole(mine, at) for mine in (training, evaluations))
    most = _MOST_IF_WHOLE if whole else _MOST
    lines: defaultdict[Mark | None, list[Rows]] = defaultdict(list)
    for each in evaluations:
        lines[each.mark].append(each)
    if rows < _ROWS or not all(
        _apart(trained, _moments(mine, at), most) > _APART for mine in lines.values()
    ):
        return False
    middles = _middle(training, at), _middle(evaluations, at)
    if min(middles[0][1], middles[1][1]) > 0 and _apart(*middles, most) <= _APART:
        return False  # A few large samples in one of them, such as bursts.
    # Not such as other data among the same kind of data.
    return all(_apart(trained, _moments([each], at), most) > _APART for each in evaluations)


def _is_wide(sample: torch.Tensor) -> bool:
    return sample.is_floating_point() and sample.shape[1] >= _WIDEST


def _moments(calls: Sequence[Rows], at: int = 0) -> tuple[float, float]:
    values = torch.cat([each.inputs[at].reshape(-1).cpu().double() for each in calls])
    return values.mean().item(), values.std(correction=0).item()


def _middle(calls: Sequence[Rows], at: int) -> tuple[float, float]:
    """Return mean and deviation of the normal distribution with the same outer quantiles."""
    values = torch.cat([each.inputs[at].reshape(-1).cpu().double() for each in calls])
    low, high = values.quantile(torch.tensor([0.1, 0.9], dtype=torch.float64)).tolist()
    return (low + high) / 2, (high - low) / _WIDTH


def _are_whole(calls: Sequence[Rows], at: int) -> bool:
    return all(bool((each.inputs[at] == each.inputs[at].round()).all()) for each in calls)


def _apart(one: tuple[float, float], other: tuple[float, float], most: float) -> float:
    """Return how far two normal distributions are apart; 0 if no scale relates them."""
    low, high = sorted((one[1], other[1]))
    if low <= 0 or high > most * low or not all(map(math.isfinite, (*one, *other))):
        return 0.0
    return max(_divergence(one, other), _divergence(other, one))


def _divergence(of: tuple[float, float], base: tuple[float, float]) -> float:
    ratio = of[1] / base[1]
    shift = (of[0] - base[0]) / base[1]
    return (ratio**2 + shift**2 - 1) / 2 - math.log(ratio)
