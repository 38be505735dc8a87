"""What seeds can tell: intervals of paired differences and ratios, and how many seeds tell more.

Both members of a pair start from the same weights and see the same images in the same order, so
that what differs between them is the recipe's doing and the noise that rounding sets off. Pairing
takes out what the seed does to both.
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
"""Where the search for a number of seeds gives up."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds, and what it is worth.

    Attributes:
        mean: The mean.
        low: Lower end of the confidence interval; None for one seed, which gives none.
        high: Its upper end.
        seeds: How many.
        seeds_needed: About how many seeds would tell a difference of this size from zero; None
            where they already do, where one seed says nothing about the noise, where the mean is
            exactly zero, and where it is more than `MOST_SEEDS`.
        sd: The sample standard deviation; None for one seed.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    seeds_needed: int | None = None
    sd: float | None = None

    @property
    def covers_zero(self) -> bool:
        """Whether zero is in the interval; one seed rules nothing out."""
        return self.low is None or self.high is None or self.low <= 0.0 <= self.high

    def seeds_to_exceed(self, bar: float) -> int | None:
        """Return about how many seeds would show that the mean is above `bar`.

        More than there are, and None where one seed says nothing about the noise, where the mean is
        not above the bar, and where it is more than `MOST_SEEDS`.
        """
        if not self.sd or self.mean <= bar:
            return None
        needed = seeds_needed(self.mean - bar, self.sd)
        return needed and max(needed, self.seeds + 1)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A geometric mean of one ratio a seed, and what it is worth.

    Attributes:
        mean: The geometric mean.
        low: Lower end of the confidence interval; None for one seed, which gives none.
        high: Its upper end.
        seeds: How many.
        log_sd: The sample standard deviation of the ratios' natural logarithms; None for one seed.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    log_sd: float | None

    def inverse(self) -> Ratio:
        """Return the ratio of what was divided by, to what was divided."""
        low = None if self.high is None else 1 / self.high
        high = None if self.low is None else 1 / self.low
        return Ratio(1 / self.mean, low, high, self.seeds, self.log_sd)

    def is_above(self, bar: float) -> bool:
        """Tell whether the interval leaves all ratios up to `bar` out."""
        return self.low is not None and self.low > bar

    def is_below(self, bar: float) -> bool:
        """Tell whether the interval leaves all ratios from `bar` on out."""
        return self.high is not None and self.high < bar

    def seeds_to_tell(self, bar: float) -> int | None:
        """Return about how many seeds would tell a ratio of this size from `bar`.

        More than there are, and None where one seed says nothing about the noise, where the ratio
        is the bar, and where it is more than `MOST_SEEDS`.
        """
        effect = math.log(self.mean / bar)
        if not self.log_sd or effect == 0.0:
            return None
        needed = seeds_needed(effect, self.log_sd)
        return needed and max(needed, self.seeds + 1)


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate | None:
    """Estimate a mean from one value a seed; None from no values."""
    if not values:
        return None
    count, mean = len(values), statistics.fmean(values)
    if count == 1:
        return Estimate(mean, None, None, 1)
    low, high = interval(np.array(values), confidence).tolist()
    sd = statistics.stdev(values)
    found = Estimate(mean, low, high, count, sd=sd)
    if not found.covers_zero or mean == 0.0:
        return found
    needed = seeds_needed(mean, sd, confidence=confidence)
    return replace(found, seeds_needed=needed and max(needed, count + 1))


def estimate_ratio(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Ratio | None:
    """Estimate a ratio from one positive value a seed; None from no values.

    The mean is geometric, so that it does not depend on which of the two is divided by the other
    (Fleming and Wallace, "How not to lie with statistics", CACM 29(3), 1986). Its interval is that
    of the mean of the logarithms, taken back (Bland and Altman, "Transformations, means, and
    confidence intervals", BMJ 312:1079, 1996).
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
    """Return the ends of the confidence interval of a mean: Student's t, exact for normal values.

    Args:
        values: Shape (..., n): one value a seed, two at least.
        confidence: How often the interval covers the true mean, 0 to 1.

    Returns:
        Shape (2, ...): the lower and the upper ends.
    """
    # Not at the top: it takes long to import, and most commands need none of it.
    from scipy.stats import ttest_1samp

    with warnings.catch_warnings():
        # The variance of equal values has no digits to speak of; their interval is that value.
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.array(ttest_1samp(values, 0.0, axis=-1).confidence_interval(confidence))


def power(effect: float, sd: float, seeds: int, confidence: float = CONFIDENCE) -> float:
    """Return how likely an interval over `seeds` pairs leaves zero out.

    That is the power of the paired two-sided t test (Cohen, "Statistical Power Analysis", 2nd
    edition, section 2.3). Its square has a noncentral F distribution. statsmodels' `TTestPower` is
    the same to 1e-15, and would bring 143 MB into every installation (benchmarks/kept.py).

    Args:
        effect: The true mean difference.
        sd: The standard deviation of differences.
        seeds: How many pairs, at least 2.
        confidence: Of the interval.
    """
    from scipy.special import ncfdtr

    freedom = seeds - 1
    edge = _edge(confidence, freedom) ** 2
    return 1.0 - float(ncfdtr(1, freedom, seeds * (effect / sd) ** 2, edge))


def seeds_needed(
    effect: float, sd: float, *, confidence: float = CONFIDENCE, wanted: float = POWER
) -> int | None:
    """Return the fewest seeds that tell `effect` from zero with probability `wanted`.

    Returns:
        At least 2; None when it is more than `MOST_SEEDS`.
    """
    if power(effect, sd, MOST_SEEDS, confidence) < wanted:
        return None
    low, high = 1, MOST_SEEDS  # too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        if power(effect, sd, middle, confidence) >= wanted:
            high = middle
        else:
            low = middle
    return high


def pareto(points: Sequence[Sequence[float]]) -> list[bool]:
    """Tell of each point whether no other is at least as good in all ways and better in one.

    Args:
        points: Each with one number a way of being good; more is better.
    """
    return [not any(_beats(other, point) for other in points) for point in points]


@functools.cache
def _edge(confidence: float, freedom: int) -> float:
    """Return how many standard errors an interval reaches to each side."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + confidence) / 2))


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(mine >= theirs for mine, theirs in pairs) and any(
        mine > theirs for mine, theirs in pairs
    )
