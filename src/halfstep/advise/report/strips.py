"""Histograms of exponents as SVG paths, on one axis with the ranges of the formats."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halfstep.advise.choose.exponents import HIGHEST, LOWEST
from halfstep.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.advise.choose.exponents import Exponents
    from halfstep.formats import Format

SHOWN = ("fp16", "bf16", "fp8-e4m3", "fp8-e5m2")
HEIGHT = 24
_WIDEST = (-64, 40)
"""Limits of the axis, the upper one excluded; exponents outside are counted in the end bins."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of binary exponents from left to right; each is one unit wide.

    Attributes:
        low: The first exponent.
        high: The last exponent plus one.
    """

    low: int
    high: int

    @classmethod
    def of(cls, histograms: Iterable[Exponents]) -> Axis:
        """Return an axis with the range of fp16 and the recorded exponents, within `_WIDEST`."""
        low, high = _lowest(FORMATS["fp16"]) - 4, _highest(FORMATS["fp16"]) + 4
        for each in histograms:
            found = each.counts.nonzero().flatten().tolist()
            if found:
                low, high = min(low, found[0] + LOWEST), max(high, found[-1] + LOWEST + 1)
        return cls(max(low, _WIDEST[0]), min(high, _WIDEST[1]))

    @property
    def width(self) -> int:
        """The number of exponents."""
        return self.high - self.low

    def ticks(self) -> list[dict[str, Any]]:
        """Return marks at multiples of eight."""
        first = math.ceil(self.low / 8) * 8
        return [{"x": each - self.low, "power": each} for each in range(first, self.high, 8)]

    def ranges(self) -> list[dict[str, Any]]:
        """Return the ranges of normal and subnormal numbers of each format."""
        return [
            {
                "name": name,
                "normal": self._part(round(math.log2(FORMATS[name].tiny)), _highest(FORMATS[name])),
                "subnormal": self._part(
                    _lowest(FORMATS[name]), round(math.log2(FORMATS[name].tiny))
                ),
            }
            for name in SHOWN
        ]

    def strip(self, histogram: Exponents | None) -> str:
        """Return a histogram as an SVG path of height `HEIGHT`; "" for an empty histogram."""
        if histogram is None or not int(histogram.counts.sum()):
            return ""
        bins = [0] * self.width
        for exponent, count in zip(
            range(LOWEST, HIGHEST + 1), histogram.counts.tolist(), strict=True
        ):
            bins[min(max(exponent, self.low), self.high - 1) - self.low] += count
        most = max(bins)
        steps = [
            f"V{HEIGHT - math.ceil(HEIGHT * count / most) if count else HEIGHT}h1" for count in bins
        ]
        return f"M0 {HEIGHT}{''.join(steps)}V{HEIGHT}z"

    def _part(self, low: int, high: int) -> dict[str, int]:
        low, high = max(low, self.low), min(high, self.high)
        return {"x": low - self.low, "width": max(0, high - low)}


def _lowest(format_: Format) -> int:
    return round(math.log2(format_.smallest_subnormal))


def _highest(format_: Format) -> int:
    return math.floor(math.log2(format_.max)) + 1
