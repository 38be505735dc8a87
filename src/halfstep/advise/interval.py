"""How far a prediction may be off, from errors on models and GPUs that were left out of a fit.

Errors are of the logarithm of time: an interval is a factor up and down. Its width is the error to
be expected of the step, by what the step is made of, times what errors of families that were left
out came to beside that (split conformal prediction with a local scale: Lei et al., 2018, section
5.2, arXiv:1604.04173). Convolutions differ more than matrix products between versions of their
library; most, those that it has no kernels of their own for: depthwise and grouped ones, and
channels that are no multiple of 8. Steps that wait for the host, and GPUs of an architecture that
nothing was measured on, are wider too.
"""

from __future__ import annotations

import json
from functools import cache
from math import exp
from typing import TYPE_CHECKING, Any, NamedTuple

from halfstep.advise.cost import FILE, constants, kernels, step_time

if TYPE_CHECKING:
    from halfstep.advise.cost import Constants
    from halfstep.advise.gpus import Gpu
    from halfstep.advise.workload import Workload

SHARES = (80, 90)
"""Percent of outcomes that an interval is to cover."""

_CONVOLUTIONS = ("conv", "depthwise", "grouped")
_VAGUE = ("depthwise", "grouped", "recurrent", "index", "unknown")


class Interval(NamedTuple):
    """A predicted figure, and between what it is likely to lie.

    Attributes:
        low: Its lower end.
        value: The prediction.
        high: Its upper end.
    """

    low: float
    value: float
    high: float

    def as_json(self) -> dict[str, float]:
        """Return it as plain data."""
        return {"low": self.low, "value": self.value, "high": self.high}

    def inverse(self, factor: float) -> Interval:
        """Return a factor divided by it: a rate from a time."""
        return Interval(factor / self.high, factor / self.value, factor / self.low)


@cache
def _widths() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())["intervals"]
    return found


def makeup(work: Workload, fitted: Constants | None = None) -> tuple[float, float, float]:
    """Return what the expected error of a step grows with.

    Returns:
        1; the share of its kernels' time in convolutions; and that in operators whose cost is known
        least, which is 1 where the step waits for the host.
    """
    fitted = fitted or constants()
    time = step_time(work, fitted)
    spent = kernels(work, fitted).total * work.count / time.device
    vague = float(spent[work.of(*_VAGUE) | work.narrow].sum())
    return 1.0, float(spent[work.of(*_CONVOLUTIONS)].sum()), 1.0 if time.bound == "host" else vague


def expected_error(work: Workload, fitted: Constants | None = None) -> float:
    """Return the logarithm by which a step's time is expected to be off."""
    scales = _widths()["expected error"]
    return float(sum(each * of for each, of in zip(scales, makeup(work, fitted), strict=True)))


def half_width(work: Workload, gpu: Gpu, share: int = 80, fitted: Constants | None = None) -> float:
    """Return the logarithm by which a step's time may be off.

    Args:
        work: The step.
        gpu: Where it runs.
        share: Percent of outcomes to cover; one of `SHARES`.
        fitted: The constants; those that ship by default.
    """
    times = float(_widths()["step"][str(share)])
    return times * expected_error(work, fitted) * _strangeness(gpu)


def around(seconds: float, width: float) -> Interval:
    """Return a prediction with what it may be off by on either side."""
    return Interval(seconds * exp(-width), seconds, seconds * exp(width))


def speed_up(full: Workload, half: Workload, gpu: Gpu, share: int = 80) -> Interval:
    """Predict how many times as fast one step is as another of the same model.

    Errors that both share cancel; what is left was measured on ResNet-50 and BERT, beside the error
    to be expected of either step.
    """
    times = float(_widths()["speed-up"][str(share)])
    expected = max(expected_error(full), expected_error(half))
    width = times * expected * _strangeness(gpu)
    return around(step_time(full).seconds / step_time(half).seconds, width)


def _strangeness(gpu: Gpu) -> float:
    """Return how much wider intervals are on an architecture that nothing was measured on."""
    found = _widths()
    if gpu.architecture in found["architectures"]:
        return 1.0
    return float(max(found["new architecture"].values()))
