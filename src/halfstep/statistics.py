"""Confidence intervals of paired differences and ratios, their power, and the seeds they need.

Both runs of a pair start from the same weights and see the same images in the same order. So they
differ only by the recipe, and by the noise that rounding errors cause. Pairing removes the effect
of the seed that both runs have in common. The interval of a mean difference is Student's t over the
pairs. It is exact for normal values even if one recipe is noisier than the other, because it needs
only the variance of the differences.
"""

from __future__ import annotations

import functools
import math
import statistics
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Values = NDArray[np.float64]

CONFIDENCE = 0.95
POWER = 0.8
MOST_SEEDS = 1000
"""The largest number of seeds that `seeds_needed` considers."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds, with its confidence interval.

    Attributes:
        mean: The mean.
        low: Lower end of the confidence interval; None for one seed, which gives no interval.
        high: Upper end of the confidence interval; None for one seed.
        seeds: The number of seeds.
        sd: The estimated standard deviation for a single seed; None if there is only one seed.
        confidence: The probability that the interval contains the true mean.
        equal: Whether there are several seeds, and the value of each is exactly zero.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    sd: float | None = None
    confidence: float = CONFIDENCE
    equal: bool = False


@dataclass(frozen=True, slots=True)
class Ratio:
    """A geometric mean of one ratio per seed, with its confidence interval.

    Attributes:
        mean: The geometric mean.
        low: Lower end of the confidence interval; None for one seed, which gives no interval.
        high: Upper end of the confidence interval; None for one seed.
        seeds: The number of seeds.
        log_sd: The sample standard deviation of the ratios' natural logarithms; None for one seed.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    log_sd: float | None

    def inverse(self) -> Ratio:
        """Return the inverse ratio, with its interval."""
        low = None if self.high is None else 1 / self.high
        high = None if self.low is None else 1 / self.low
        return Ratio(1 / self.mean, low, high, self.seeds, self.log_sd)

    def is_above(self, bar: float) -> bool:
        """Tell whether the whole interval is above `bar`; false for one seed."""
        return self.low is not None and self.low > bar

    def is_below(self, bar: float) -> bool:
        """Tell whether the whole interval is below `bar`; false for one seed."""
        return self.high is not None and self.high < bar

    def seeds_to_tell(self, bar: float) -> int | None:
        """Return the approximate number of seeds that would show that the ratio is not `bar`.

        The number is larger than `seeds`. It is None if the standard deviation is unknown (one
        seed) or zero, if the mean is exactly `bar`, or if the number is above `MOST_SEEDS`.
        """
        effect = math.log(self.mean / bar)
        if not self.log_sd or effect == 0.0:
            return None
        needed = seeds_needed(effect, self.log_sd)
        return needed and max(needed, self.seeds + 1)


def estimate(
    values: Sequence[float], confidence: float = CONFIDENCE, step: float = 0.0
) -> Estimate | None:
    """Estimate a mean from one value per seed; None if there are no values.

    Args:
        values: One value per seed.
        confidence: The probability that the interval contains the true mean, 0 to 1.
        step: The smallest difference between two values. Values that agree by luck do not prove
            that there is no noise, so the variance is at least that of values that agree but for
            one step in one seed.
    """
    if not values:
        return None
    count, mean = len(values), statistics.fmean(values)
    if count == 1:
        return Estimate(mean, None, None, 1, confidence=confidence)
    half, sd = (float(each) for each in half_width(np.array(values), confidence, step))
    return Estimate(mean, mean - half, mean + half, count, sd, confidence, not any(values))


def half_width(values: Values, confidence: float, step: float = 0.0) -> tuple[Values, Values]:
    """Return half the width of the interval of a mean, and the standard deviation it rests on.

    Args:
        values: Shape (..., n): one value per seed, at least two.
        confidence: The probability that the interval contains the true mean, 0 to 1.
        step: The smallest difference between two values; see `estimate`.

    Returns:
        Both of the shape (...).
    """
    seeds = values.shape[-1]
    sd = np.sqrt(np.maximum(values.var(-1, ddof=1), step**2 / seeds))
    return _edge(confidence, seeds - 1) * sd / math.sqrt(seeds), sd


def estimate_ratio(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Ratio | None:
    """Estimate a ratio from one positive value per seed; None if there are no values.

    The mean is geometric, so the mean of the inverse ratios is the inverse of the mean (Fleming and
    Wallace, "How not to lie with statistics", CACM 29(3), 1986). The interval is the exponential of
    the interval of the logarithms' mean (Bland and Altman, "Transformations, means, and confidence
    intervals", BMJ 312:1079, 1996).
    """
    if not ratios:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    mean, count = math.exp(statistics.fmean(logs)), len(logs)
    if count == 1:
        return Ratio(mean, None, None, 1, None)
    low, high = np.exp(interval(np.array(logs), confidence)).tolist()
    return Ratio(mean, low, high, count, statistics.stdev(logs))


def interval(values: Values, confidence: float = CONFIDENCE) -> Values:
    """Return the confidence interval of a mean by Student's t, which is exact for normal values.

    Args:
        values: Shape (..., n): one value per seed, at least two.
        confidence: The probability that the interval contains the true mean, 0 to 1.

    Returns:
        Shape (2, ...): the lower and the upper ends.
    """
    # Imported here, because the import is slow and most commands do not need it.
    from scipy.stats import ttest_1samp

    with warnings.catch_warnings():
        # scipy warns that the variance of equal values is inexact. Their interval is that value.
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.array(ttest_1samp(values, 0.0, axis=-1).confidence_interval(confidence))


def power(effect: float, sd: float, seeds: int, confidence: float = CONFIDENCE) -> float:
    """Return the probability that the confidence interval over `seeds` pairs excludes zero.

    This is the power of the paired two-sided t test (Cohen, "Statistical Power Analysis", 2nd
    edition, section 2.3). The square of t has a noncentral F distribution. The results agree with
    statsmodels' `TTestPower` to 1e-15. statsmodels is not used, because it would add 143 MB to
    every installation (benchmarks/kept.py).

    Args:
        effect: The true mean difference.
        sd: The standard deviation of the differences; 0 finds any effect.
        seeds: The number of pairs, at least 2.
        confidence: The confidence of the interval, 0 to 1.
    """
    from scipy.special import ncfdtr

    if sd == 0:
        return float(effect != 0)
    edge = _edge(confidence, seeds - 1) ** 2
    return 1.0 - float(ncfdtr(1, seeds - 1, seeds * (effect / sd) ** 2, edge))


def seeds_needed(effect: float, sd: float, confidence: float = CONFIDENCE) -> int | None:
    """Return the smallest number of seeds with which `power` is at least `POWER`.

    Returns:
        A number of at least 2; None if it is above `MOST_SEEDS`.
    """
    if power(effect, sd, MOST_SEEDS, confidence) < POWER:
        return None
    low, high = 1, MOST_SEEDS  # `low` is always too few, `high` is always enough
    while high - low > 1:
        middle = (low + high) // 2
        if power(effect, sd, middle, confidence) >= POWER:
            high = middle
        else:
            low = middle
    return high


def pooled_sd(groups: Sequence[Sequence[float]], step: float = 0.0) -> float | None:
    """Return the standard deviation that groups of values have in common; None if it is unknown.

    It is for planning alone: how many seeds a comparison needs, and which power it has. An interval
    rests on the values of its own row.

    Args:
        groups: The values of each row; a row of fewer than two does not count.
        step: The smallest difference between two values, as for `estimate`.
    """
    known = [group for group in groups if len(group) > 1]
    if not known:
        return None
    squares = sum(
        (len(group) - 1) * max(statistics.variance(group), step**2 / len(group)) for group in known
    )
    return math.sqrt(squares / sum(len(group) - 1 for group in known))


def pareto(points: Sequence[Sequence[float]]) -> list[bool]:
    """Tell for each point whether it is on the Pareto front.

    A point is on the front if no other point is at least as good in all coordinates and better in
    one.

    Args:
        points: Points with the same number of coordinates; larger is better in each.
    """
    return [not any(_beats(other, point) for other in points) for point in points]


@functools.cache
def _edge(confidence: float, freedom: int) -> float:
    """Return the half width of the confidence interval in standard errors: a quantile of t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + confidence) / 2))


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(mine >= theirs for mine, theirs in pairs) and any(
        mine > theirs for mine, theirs in pairs
    )
