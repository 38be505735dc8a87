"""Intervals of predictions, from the errors on models and GPUs that were left out of a fit.

Errors are errors of the logarithm of time, so an interval is a factor in both directions. Its
half-width is the product of the expected error of the step and a quantile (split conformal
prediction with a local scale: Lei et al., 2018, section 5.2, arXiv:1604.04173). The expected error
depends on the operators of the step. The quantile is that of the ratios of observed to expected
errors, on model families that were left out of the fit.

The speed of convolutions varies more between versions of cuDNN than that of matrix products. The
largest errors are those of convolutions without dedicated kernels: depthwise and grouped ones, and
channel counts that are not multiples of 8. Intervals are also wider for steps that wait for the
host, and on GPUs of an architecture without measurements.
"""

from __future__ import annotations

import json
from functools import cache
from math import exp
from typing import TYPE_CHECKING, Any, NamedTuple

from halfstep.advise.predict.cost import FILE, constants, kernels, step_time

if TYPE_CHECKING:
    from halfstep.advise.predict.cost import Constants
    from halfstep.advise.predict.gpus import Gpu
    from halfstep.advise.predict.workload import Workload

SHARES = (80, 90)
"""The coverages that an interval can have, in percent of outcomes."""

_UNKNOWN = {80: 0.26, 90: 0.34}
"""The least half-widths on an architecture without any measurement, and in FP8: 90 % of the errors
of a similar cost model on H200, GH200 and B200 were below 29 %, a logarithm of 0.34, before any of
these GPUs was in a fit."""

_CONVOLUTIONS = ("conv", "depthwise", "grouped")
_VAGUE = ("depthwise", "grouped", "recurrent", "index", "unknown")


class Interval(NamedTuple):
    """A predicted figure and its interval.

    Attributes:
        low: The lower end of the interval.
        value: The prediction.
        high: The upper end of the interval.
    """

    low: float
    value: float
    high: float

    def as_json(self) -> dict[str, float]:
        """Return the interval as plain data."""
        return {"low": self.low, "value": self.value, "high": self.high}

    def inverse(self, factor: float) -> Interval:
        """Return `factor` divided by the figure, which turns a time into a rate."""
        return Interval(factor / self.high, factor / self.value, factor / self.low)


@cache
def _widths() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def makeup(work: Workload, fitted: Constants | None = None) -> tuple[float, float, float]:
    """Return the features from which the expected error of a step is computed.

    Returns:
        Three features: 1, for the constant term; the share of the kernels' time in convolutions;
        and the share in operators with the most uncertain cost. The last share is set to 1 if the
        step waits for the host.
    """
    fitted = fitted or constants(work.architecture)
    time = step_time(work, fitted)
    spent = kernels(work, fitted).total * work.count / time.device
    vague = float(spent[work.of(*_VAGUE) | work.narrow].sum())
    return 1.0, float(spent[work.of(*_CONVOLUTIONS)].sum()), 1.0 if time.bound == "host" else vague


def expected_error(work: Workload, fitted: Constants | None = None) -> float:
    """Return the expected error of a step's predicted time, as a natural logarithm."""
    scales = _widths()["intervals"]["expected error"]
    return float(sum(each * of for each, of in zip(scales, makeup(work, fitted), strict=True)))


def half_width(work: Workload, gpu: Gpu, share: int = 80, fitted: Constants | None = None) -> float:
    """Return the half-width of a step's interval, as a natural logarithm of time.

    Args:
        work: The step.
        gpu: The GPU.
        share: The coverage, in percent of outcomes; one of `SHARES`.
        fitted: The constants of the cost model; by default the shipped ones.
    """
    times = float(_widths()["intervals"]["step"][str(share)])
    width = _wider(times * expected_error(work, fitted), gpu, share, work)
    return _between(width, share, work)


def around(seconds: float, width: float) -> Interval:
    """Return the interval around a predicted time; `width` is the logarithmic half-width."""
    return Interval(seconds * exp(-width), seconds, seconds * exp(width))


def speed_up(full: Workload, half: Workload, gpu: Gpu, share: int = 80) -> Interval:
    """Predict the speed-up of the step `half` over the step `full` of the same model.

    Errors that both steps share cancel. The remaining error was measured on ResNet-50 and BERT,
    relative to the larger expected error of the two steps.
    """
    times = float(_widths()["intervals"]["speed-up"][str(share)])
    ratio = step_time(full).seconds / step_time(half).seconds
    expected = max(expected_error(full), expected_error(half))
    width = _wider(times * expected, gpu, share, half)
    return around(ratio, _between(width, share, full, half))


def known(work: Workload) -> float:
    """Return the share of a step's time that measured operators tell; 0 if the host limits it."""
    time = step_time(work)
    if time.bound == "host":
        return 0.0
    spent = kernels(work, constants(work.architecture)).total * work.count
    return float(spent @ work.trust / time.device)


def _between(width: float, share: int, *works: Workload) -> float:
    """Return the half-width for steps whose times are partly measured, partly modelled.

    Args:
        width: The half-width of a modelled time.
        share: The coverage, in percent of outcomes.
        works: The steps; the one of which least is measured counts.
    """
    widths = works[0].widths
    if widths is None:
        return width
    part = min(map(known, works))
    return part * widths[SHARES.index(share)] + (1 - part) * width


def _wider(width: float, gpu: Gpu, share: int, work: Workload) -> float:
    """Widen the half-width of an interval from published speeds, by what is known of a GPU.

    On an architecture that was measured with current software, by the errors there; on one that was
    not measured at all, also by the errors on architectures that were left out of a fit. There, and
    for products in FP8, of which no step was measured, to no less than the errors on the newest
    GPUs when they were new (`_UNKNOWN`).
    """
    found = _widths()
    architectures, current = found["intervals"], found["current"]
    name = gpu.architecture
    near = current["alike"].get(name, name)
    width *= float(current["wider"].get(near, {}).get(str(share), 1.0))
    if name not in architectures["architectures"]:
        width *= float(max(architectures["new architecture"].values()))
    elif not work.fp8.any():
        return width
    return max(width, _UNKNOWN[share])
