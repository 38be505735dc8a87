"""Confidence intervals of paired differences and ratios, and the number of seeds that is needed.

Both runs of a pair start from the same weights and see the same images in the same order. So they
differ only by the recipe, and by the noise that rounding errors cause. Pairing removes the effect
of the seed that both runs have in common. `noise` estimates what is left from all rows.
"""

from __future__ import annotations

import functools
import math
import statistics
import warnings
from dataclasses import dataclass, replace
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
        seeds_needed: The approximate number of seeds that would show that a mean of this size is
            not zero. None if the interval already excludes zero, if there is only one seed, if the
            mean is exactly zero, or if the number is above `MOST_SEEDS`.
        sd: The estimated standard deviation for a single seed; None if there is only one seed.
        freedom: The degrees of freedom of `sd`; None for one seed.
        equal: Whether there are several seeds, and the value of each is exactly zero.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    seeds_needed: int | None = None
    sd: float | None = None
    freedom: float | None = None
    equal: bool = False

    @property
    def covers_zero(self) -> bool:
        """Whether the interval contains zero; true for one seed, which gives no interval."""
        return self.low is None or self.high is None or self.low <= 0.0 <= self.high

    def seeds_to_exceed(self, bar: float) -> int | None:
        """Return the approximate number of seeds that would show that the mean is above `bar`.

        The number is larger than `seeds`. It is None if the standard deviation is unknown (one
        seed) or zero, if the mean is not above `bar`, or if the number is above `MOST_SEEDS`.
        """
        if not self.sd or self.freedom is None or self.mean <= bar:
            return None
        needed = seeds_needed(self.mean - bar, self.sd, self.freedom - self.seeds + 1)
        return needed and max(needed, self.seeds + 1)


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


def estimate(values: Sequence[float], noise: tuple[float, float] | None = None) -> Estimate | None:
    """Estimate a mean from one value per seed; None if there are no values.

    Args:
        values: One value per seed.
        noise: The variance for a single seed, and its degrees of freedom; default: the sample
            variance of the values.
    """
    if not values:
        return None
    count, mean = len(values), statistics.fmean(values)
    if count == 1:
        return Estimate(mean, None, None, 1)
    variance, freedom = noise or (statistics.variance(values), count - 1)
    sd = math.sqrt(variance)
    half = _edge(CONFIDENCE, freedom) * sd / math.sqrt(count)
    found = Estimate(
        mean, mean - half, mean + half, count, sd=sd, freedom=freedom, equal=not any(values)
    )
    if not found.covers_zero or mean == 0.0:
        return found
    needed = seeds_needed(mean, sd, freedom - count + 1)
    return replace(found, seeds_needed=needed and max(needed, count + 1))


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


def power(effect: float, sd: float, seeds: int, lent: float = 0.0) -> float:
    """Return the probability that the confidence interval over `seeds` pairs excludes zero.

    This is the power of the paired two-sided t test (Cohen, "Statistical Power Analysis", 2nd
    edition, section 2.3). The square of t has a noncentral F distribution. The results agree with
    statsmodels' `TTestPower` to 1e-15. statsmodels is not used, because it would add 143 MB to
    every installation (benchmarks/kept.py).

    Args:
        effect: The true mean difference.
        sd: The standard deviation of the differences.
        seeds: The number of pairs, at least 2.
        lent: The degrees of freedom that `sd` has besides those of the pairs.
    """
    from scipy.special import ncfdtr

    freedom = seeds - 1 + lent
    edge = _edge(CONFIDENCE, freedom) ** 2
    return 1.0 - float(ncfdtr(1, freedom, seeds * (effect / sd) ** 2, edge))


def seeds_needed(effect: float, sd: float, lent: float = 0.0) -> int | None:
    """Return the smallest number of seeds with which `power` is at least `POWER`.

    Returns:
        A number of at least 2; None if it is above `MOST_SEEDS`.
    """
    if power(effect, sd, MOST_SEEDS, lent) < POWER:
        return None
    low, high = 1, MOST_SEEDS  # `low` is always too few, `high` is always enough
    while high - low > 1:
        middle = (low + high) // 2
        if power(effect, sd, middle, lent) >= POWER:
            high = middle
        else:
            low = middle
    return high


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
