"""The loss scale that a training can start with: as large as the gradients of its sites allow."""

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
"""Between the largest gradient of the recorded steps and the largest value of the format."""
MOST_LOST = 1e-4
"""Share of a gradient's energy that rounding may change: one per cent of its norm."""


def first_scale(recorded: Record, half_sites: Mapping[Site, str], scaling: LossScale) -> float:
    """Return the power of two at which the fewest sites overflow or lose much of their gradients.

    Of several, the largest up to the recipe's own first scale.

    Args:
        recorded: Has the gradients that reached every site.
        half_sites: Those that compute in a half format, with it.
        scaling: The recipe's own.
    """
    gradients = _gradients(recorded, half_sites)
    lowest, highest = math.ceil(math.log2(scaling.floor)), math.floor(math.log2(scaling.init))
    powers = [2.0**power for power in range(highest, lowest - 1, -1)]
    return min(powers, key=lambda scale: sum(_suffers(*each, scale) for each in gradients))


def overflows(recorded: Record, half_sites: Mapping[Site, str], scale: float) -> bool:
    """Tell whether a gradient of a recorded step, times the scale, comes near the largest value."""
    return any(
        gradient.headroom(FORMATS[format_]) - math.log2(scale) < SPARE_BITS
        for gradient, format_ in _gradients(recorded, half_sites)
    )


def _gradients(recorded: Record, half_sites: Mapping[Site, str]) -> list[tuple[Exponents, str]]:
    """Return the gradients of sites, and of parameters, each with the format that they are in."""
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
