"""`exponents.c`: counts and squares of fp32 values by exponent, in one pass over memory."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from halfstep.kernels.native.compiled import at, load

EXPONENTS = 256
"""Values of the eight bits of an fp32 exponent as they are stored."""
_LANES = 4
"""Neighbours are added up apart, as `exponents.c` does."""
_SOURCE = Path(__file__).with_name("exponents.c")


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None where they cannot be had."""
    return load(_SOURCE, otherwise="exponents are counted by plain PyTorch, which is slow")


def by_exponent(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Count values, and sum their squares, by the exponent that they store.

    Args:
        flat: (n,) fp32.

    Returns:
        (256,) int64 counts and (256,) float64 sums of squares. The first exponent is that of zeros
        and subnormal values, the last that of inf and NaN. A compiler does not change the bits.
    """
    functions = library()
    if functions is None or flat.device.type != "cpu" or not flat.is_contiguous():
        return _plainly(flat)
    counts = torch.empty(EXPONENTS, dtype=torch.int64)
    squares = torch.empty(EXPONENTS, dtype=torch.float64)
    functions.by_exponent(at(flat), ctypes.c_int64(flat.numel()), at(counts), at(squares))
    return counts, squares


def _plainly(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    stored = (flat.contiguous().view(torch.int32) >> 23) & (EXPONENTS - 1)
    squared = flat.double().square_()
    squares = torch.zeros(EXPONENTS, dtype=torch.float64, device=flat.device)
    for lane in range(_LANES):
        squares += torch.bincount(stored[lane::_LANES], squared[lane::_LANES], minlength=EXPONENTS)
    return torch.bincount(stored, minlength=EXPONENTS), squares
