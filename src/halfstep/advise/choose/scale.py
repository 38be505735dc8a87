"""Computes an initial loss scale: as large as the gradients of the sites allow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfstep.advise.choose.exponents import Exponents
    from halfstep.advise.choose.record import Record
    from halfstep.advise.choose.sites import Site
    from halfstep.loss_scale import LossScale

SPARE_BITS = 3
"""Minimum bits between the largest scaled gradient of the recorded steps and the largest value of
the format."""
MOST_LOST = 1e-4
"""Maximum share of a gradient's energy that may be lost to rounding: one percent of its norm."""


def first_scale(recorded: Record, half_sites: Mapping[Site, str], scaling: LossScale) -> float:
    """Return the power of two at which the fewest sites overflow or lose much of their gradients.

    If several powers are equally good, return the largest. The recipe's initial scale is the upper
    limit, and the floor of its scale the lower one.

    Args:
        recorded: The recorded steps, with the gradients of every site.
        half_sites: The sites that compute in a half format, and that format.
        scaling: The loss scale settings of the recipe.
    """
    gradients = _gradients(recorded, half_sites)
    lowest, highest = math.ceil(math.log2(scaling.floor)), math.floor(math.log2(scaling.init))
    powers = [2.0**power for power in range(highest, lowest - 1, -1)]
    return min(powers, key=lambda scale: sum(_suffers(*each, scale) for each in gradients))


def overflows(recorded: Record, half_sites: Mapping[Site, str], scale: float) -> bool:
    """Tell whether a recorded gradient, times the scale, comes near the format's largest value."""
    return any(
        gradient.headroom(FORMATS[format_]) - math.log2(scale) < SPARE_BITS
        for gradient, format_ in _gradients(recorded, half_sites)
    )


def _gradients(recorded: Record, half_sites: Mapping[Site, str]) -> list[tuple[Exponents, str]]:
    """Return the gradients of sites and those of parameters, each with a half format."""
    of_sites = [
        (recorded.backward[site], format_)
        for site, format_ in half_sites.items()
        if site in recorded.backward
    ]
    formats = sorted(set(half_sites.values()))
    return of_sites + [(recorded.of_parameters, format_) for format_ in formats]


def _suffers(gradient: Exponents, format_: str, scale: float) -> bool:
    limits = FORMATS[format_]
    over = gradient.headroom(limits) - math.log2(scale) < SPARE_BITS
    return over or gradient.rounded_away(limits, scale) > MOST_LOST
