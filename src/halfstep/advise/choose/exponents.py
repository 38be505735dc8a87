"""Histograms of the binary exponents of tensors, and the rounding errors that a format causes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from halfstep.formats import FORMATS
from halfstep.kernels.native.exponents import by_exponent

if TYPE_CHECKING:
    from halfstep.formats import Format

LOWEST, HIGHEST = -149, 127  # exponents of fp32, subnormals included
_NORMAL = -126 - LOWEST  # index of the lowest exponent of normal values
_TINY = FORMATS["fp32"].tiny


@dataclass(frozen=True, slots=True)
class Exponents:
    """Counts and sums of squares of values by binary exponent e: 2^e <= |value| < 2^(e+1).

    Attributes:
        counts: (277,) int64; the number of values with each exponent from -149 to 127.
        squares: (277,) float64; the sum of the squares of the values with each exponent.
        zeros: The number of zeros.
        nonfinite: The number of inf and NaN.
    """

    counts: torch.Tensor
    squares: torch.Tensor
    zeros: int
    nonfinite: int

    @classmethod
    def none(cls) -> Self:
        """Return the histogram of no values."""
        size = HIGHEST - LOWEST + 1
        return cls(
            torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.float64), 0, 0
        )

    @classmethod
    def of(cls, values: torch.Tensor) -> Self:
        """Count the values of a floating-point tensor of any shape."""
        flat = values.detach().reshape(-1).float()
        # Indexed by the exponent's bits: 0 for zeros and subnormals, 255 for inf and NaN.
        of_stored, squares_stored = by_exponent(flat)
        found = cls.none()
        found.counts[_NORMAL:] = of_stored[1:255]
        found.squares[_NORMAL:] = squares_stored[1:255]
        zeros = int(of_stored[0])
        if float(squares_stored[0]):  # some are subnormal
            small = flat[(flat.abs() < _TINY) & (flat != 0)]
            index = torch.frexp(small).exponent - 1 - LOWEST
            size = len(found.counts)
            found.counts.add_(torch.bincount(index, minlength=size))
            found.squares.add_(torch.bincount(index, small.double().square(), minlength=size))
            zeros -= len(small)
        return cls(found.counts, found.squares, zeros, int(of_stored[255]))

    def __add__(self, other: Self) -> Exponents:
        return Exponents(
            self.counts + other.counts,
            self.squares + other.squares,
            self.zeros + other.zeros,
            self.nonfinite + other.nonfinite,
        )

    @property
    def highest(self) -> int | None:
        """The exponent of the largest finite value; None if no finite value is nonzero."""
        found = self.counts.nonzero()
        return int(found[-1]) + LOWEST if len(found) else None

    def headroom(self, format_: Format) -> float:
        """Return a format's highest exponent minus `highest`; negative if the values overflow."""
        if self.highest is None:
            return math.inf
        return math.floor(math.log2(format_.max)) - self.highest

    def rounded_away(self, format_: Format, scale: float = 1.0) -> float:
        """Estimate the squared rounding error of values times `scale`, over their sum of squares.

        A value in the binade [2^e, 2^(e+1)) is rounded to a multiple of the spacing there. The
        error is uniformly distributed, so its mean square is a twelfth of the squared spacing. A
        value below half of the smallest subnormal is lost completely.
        """
        total = float(self.squares.sum())
        if total == 0:
            return 0.0
        exponents = torch.arange(LOWEST, HIGHEST + 1, dtype=torch.float64) + math.log2(scale)
        normal = torch.exp2(exponents.clamp(min=math.log2(format_.tiny))) * format_.eps
        spread = self.counts * (normal / scale).square() / 12
        lost = torch.exp2(exponents) < format_.smallest_subnormal / 2
        return float(torch.where(lost, self.squares, spread).sum()) / total
