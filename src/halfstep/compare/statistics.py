"""What seeds can tell: intervals of paired differences, and how many seeds would tell more.

Both members of a pair start from the same weights and see the same images in the same order, so
that what differs between them is the recipe's doing and the noise that rounding sets off. Pairing
takes out what the seed does to both.
"""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    seeds_needed: int | None = None

    @property
    def covers_zero(self) -> bool:
        """Whether zero is in the interval; one seed rules nothing out."""
        return self.low is None or self.high is None or self.low <= 0.0 <= self.high


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate | None:
    """Estimate a mean from one value a seed; None from no values.

    The interval is Student's: mean ± t(n - 1) s / √n, exact for normal values.
    """
    if not values:
        return None
    count, mean = len(values), statistics.fmean(values)
    if count == 1:
        return Estimate(mean, None, None, 1)
    sd = statistics.stdev(values)
    half = _edge(confidence, count - 1) * sd / math.sqrt(count)
    found = Estimate(mean, mean - half, mean + half, count)
    if not found.covers_zero or mean == 0.0:
        return found
    needed = seeds_needed(mean, sd, confidence=confidence)
    return Estimate(mean, found.low, found.high, count, needed and max(needed, count + 1))


def power(effect: float, sd: float, seeds: int, confidence: float = CONFIDENCE) -> float:
    """Return how likely an interval over `seeds` pairs leaves zero out.

    That is the power of the paired two-sided t test (Cohen, "Statistical Power Analysis", 2nd
    edition, section 2.3). Its square has a noncentral F distribution.

    Args:
        effect: The true mean difference.
        sd: The standard deviation of differences.
        seeds: How many pairs, at least 2.
        confidence: Of the interval.
    """
    # Not scipy.stats, which takes seconds to import.
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
