"""`exponents.c`: counts and sums of squares of fp32 values by exponent, in one pass over memory."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from halfstep.kernels.native.compiled import at, load

EXPONENTS = 256
"""The number of different values of the eight exponent bits of fp32."""
_LANES = 4
"""The number of partial sums per exponent; `exponents.c` has as many, so the bits are equal."""
_SOURCE = Path(__file__).with_name("exponents.c")


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None if they cannot be compiled or loaded."""
    return load(_SOURCE, otherwise="exponents are counted by plain PyTorch, which is slow")


def by_exponent(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Count values, and sum their squares, by their stored exponent.

    Args:
        flat: (n,) fp32.

    Returns:
        (256,) int64 counts and (256,) float64 sums of squares. Exponent 0 contains zeros and
        subnormal values, exponent 255 inf and NaN. The bits are the same with and without a
        compiler.
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
