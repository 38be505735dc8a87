"""Looks at a comparison while it grows: how much of the error each planned look may spend.

Whoever looks after every seed, and stops at the first good moment, is wrong far more often than
one interval says. So the looks are planned: each gets a level of its own, such that all of them
together err as rarely as one. The error is spent by the function of Lan and DeMets ("Discrete
sequential boundaries for clinical trials", Biometrika 70, 1983) that resembles O'Brien and
Fleming's boundaries: very little at early looks, so that the last look costs hardly any power. The
boundaries are those of normal means with known variance. At each look, the interval takes Student's
t at the same level (Jennison and Turnbull, "Group Sequential Methods", 2000, section 4.4), and so
holds whenever the comparison stops (section 9.1: repeated confidence intervals).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

_NODES = 201
"""Nodes of the quadrature over the sums that have not crossed a boundary."""
_FARTHEST = 9.0
"""Standard deviations below which a normal density is taken to be 0."""


@functools.cache
def levels(looks: tuple[int, ...], error: float) -> tuple[float, ...]:
    """Return the two-sided level of the interval at each look.

    Args:
        looks: The number of seeds at each look, increasing.
        error: The probability that the interval of any look excludes the true mean, 0 to 1, half
            of it on each side.

    Returns:
        One level per look: 1 - confidence. That of a single look is `error`.
    """
    from scipy.special import ndtr, ndtri

    if len(looks) == 1:
        return (error,)
    side = error / 2
    shares = np.array(looks) / looks[-1]
    # What may have been spent on one side, after each look.
    spent = 2 * ndtr(ndtri(side / 2) / np.sqrt(shares))
    allowed = np.diff(spent, prepend=0.0)
    found: list[float] = []
    # The sum of the seeds so far, with a variance of `share`; at first, it is 0 for certain.
    sums, weights, before = np.zeros(1), np.ones(1), 0.0
    for share, chance in zip(shares, allowed, strict=True):
        spread = np.sqrt(share - before)
        boundary = _boundary(sums, weights, spread, chance)
        found.append(float(2 * ndtr(-boundary / np.sqrt(share))))
        nodes, quadrature = np.polynomial.legendre.leggauss(_NODES)
        low = -_FARTHEST * np.sqrt(share)
        half = (boundary - low) / 2
        next_sums = low + half * (nodes + 1)
        steps = (next_sums[:, None] - sums) / spread
        density = np.exp(-(steps**2) / 2) / (spread * np.sqrt(2 * np.pi)) @ weights
        sums, weights, before = next_sums, quadrature * half * density, share
    return tuple(found)


def _boundary(sums: Values, weights: Values, spread: float, chance: float) -> float:
    """Return what the next sum exceeds with the probability `chance`, by bisection."""
    from scipy.special import ndtr

    low, high = -_FARTHEST, _FARTHEST
    for _ in range(80):
        middle = (low + high) / 2
        exceeds = float(ndtr((sums - middle) / spread) @ weights)
        low, high = (middle, high) if exceeds > chance else (low, middle)
    return high
