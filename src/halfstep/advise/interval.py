"""How far a prediction may be off, from errors on models and GPUs that were left out of a fit.

Errors are of the logarithm of time: an interval is a factor up and down. They are wider where much
of a step is spent in operators whose kernels differ most from version to version (depthwise and
grouped convolutions), or on launching kernels, and on GPUs of an architecture that nothing was
measured on.
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

_VAGUE = ("depthwise", "grouped", "recurrent", "index", "unknown")
_VAGUE_FROM = 0.15


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


def is_vague(work: Workload, fitted: Constants | None = None) -> bool:
    """Tell whether much of a step is in operators whose cost is known least."""
    fitted = fitted or constants()
    time = step_time(work, fitted)
    spent = kernels(work, fitted).total * work.count
    share = float(spent[work.of(*_VAGUE)].sum()) / time.device
    return share >= _VAGUE_FROM or time.bound == "host"


def half_width(work: Workload, gpu: Gpu, share: int = 80, fitted: Constants | None = None) -> float:
    """Return the logarithm by which a step's time may be off.

    Args:
        work: The step.
        gpu: Where it runs.
        share: Percent of outcomes to cover; one of `SHARES`.
        fitted: The constants; those that ship by default.
    """
    found = _widths()
    kind = "vague" if is_vague(work, fitted) else "plain"
    return float(found[kind][str(share)]) * _strangeness(gpu, share)


def around(seconds: float, width: float) -> Interval:
    """Return a prediction with what it may be off by on either side."""
    return Interval(seconds * exp(-width), seconds, seconds * exp(width))


def speed_up(full: Workload, half: Workload, gpu: Gpu, share: int = 80) -> Interval:
    """Predict how many times as fast one step is as another of the same model.

    Errors that both share cancel; what is left was measured on ResNet-50 and BERT. Where either
    step is vague, the width grows as that of its time does.
    """
    found = _widths()
    width = float(found["speed-up"][str(share)]) * _strangeness(gpu, share)
    if is_vague(full) or is_vague(half):
        width *= found["vague"][str(share)] / found["plain"][str(share)]
    return around(step_time(full).seconds / step_time(half).seconds, width)


def _strangeness(gpu: Gpu, share: int) -> float:
    found = _widths()
    if gpu.architecture in found["architectures"]:
        return 1.0
    return float(found["new architecture"][str(share)])
