"""Medians and quartiles over rounds, and which settings are as fast as the best beyond doubt.

Settings take turns within a round, so that what slows the machine for a while slows all of them,
and ratios are taken within rounds.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Faster = Literal["more", "less"]
"""Whether a larger figure is the faster one (images/s), or a smaller one (seconds)."""

LEAST_GAIN = 1.03
"""How many times as fast a setting must be for anybody to change a config for it."""


@dataclass(frozen=True, slots=True)
class Quartiles:
    """A median, and the quartiles around it.

    Attributes:
        median: Half of the values are not larger.
        low: A quarter of them is not larger.
        high: Three quarters are not larger.
    """

    median: float
    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Whether there is no spread: of one round, or of a setting beside itself."""
        return self.low == self.high


def spread(values: Sequence[float]) -> Quartiles:
    """Return the median and the quartiles of at least one value."""
    if len(values) == 1:
        return Quartiles(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Quartiles(median, low, high)


def speed_ratios(
    figures: Sequence[float], others: Sequence[float], faster: Faster
) -> tuple[float, ...]:
    """Return how many times as fast as `others` each round was; both have a figure a round."""
    pairs = zip(figures, others, strict=True)
    return tuple(one / two if faster == "more" else two / one for one, two in pairs)


def is_faster(figures: Sequence[float], others: Sequence[float], faster: Faster) -> bool:
    """Tell whether one setting is worth changing to from another.

    It is if its median ratio is at least `LEAST_GAIN` and it was faster in at least three quarters
    of the rounds.
    """
    ratios = speed_ratios(figures, others, faster)
    ahead = sum(each > 1.0 for each in ratios)
    return statistics.median(ratios) >= LEAST_GAIN and ahead >= 0.75 * len(ratios)


def first_good_enough(figures: Sequence[Sequence[float]], faster: Faster) -> int:
    """Return the place of the first setting that none of the others is faster than.

    Args:
        figures: For each setting, the smallest first, its figure in each round.
        faster: Which figures are the faster ones.
    """
    # Medians of ratios may go round in a circle; then the best median is as good an answer as any.
    medians = [spread(own).median for own in figures]
    best = medians.index((max if faster == "more" else min)(medians))
    return next(
        (
            place
            for place, own in enumerate(figures)
            if not any(is_faster(other, own, faster) for other in figures)
        ),
        best,
    )
