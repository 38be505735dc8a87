"""Medians and quartiles over rounds, and the choice of a setting that no other one clearly beats.

Each round measures every setting once, so that a temporary slowdown of the machine affects all
settings. Ratios are computed within rounds.
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
"""Minimum speed-up for which it is worthwhile to change a config."""


@dataclass(frozen=True, slots=True)
class Quartiles:
    """A median and its quartiles.

    Attributes:
        median: The median.
        low: The lower quartile.
        high: The upper quartile.
    """

    median: float
    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Whether there is no spread: with one round, or for a setting compared with itself."""
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
    """Return the speed-up of `figures` over `others` in each round."""
    pairs = zip(figures, others, strict=True)
    return tuple(one / two if faster == "more" else two / one for one, two in pairs)


def is_faster(figures: Sequence[float], others: Sequence[float], faster: Faster) -> bool:
    """Tell whether one setting is so much faster than another that a change is worthwhile.

    This is the case if its median speed-up is at least `LEAST_GAIN`, and it was faster in at least
    three quarters of the rounds.
    """
    ratios = speed_ratios(figures, others, faster)
    ahead = sum(ratio > 1.0 for ratio in ratios)
    return statistics.median(ratios) >= LEAST_GAIN and ahead >= 0.75 * len(ratios)


def first_good_enough(figures: Sequence[Sequence[float]], faster: Faster) -> int:
    """Return the index of the first setting that no other setting beats by `is_faster`.

    Args:
        figures: The figures of each setting by round; the smallest setting first.
        faster: Whether larger or smaller figures are faster.
    """
    # Each setting may be beaten by another, in a cycle. Then the best median decides.
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
