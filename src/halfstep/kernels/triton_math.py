"""Functions for Triton kernels, with the same bits on a GPU and in the interpreter of the tests."""

from __future__ import annotations

import triton  # type: ignore[import-untyped]  # it has no types
from triton import language as tl

_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit  # type: ignore[untyped-decorator]
def to_bf16(values: tl.tensor) -> tl.tensor:
    """Round fp32 to the nearest bf16, ties to even; the interpreter's own cast truncates."""
    if _INTERPRETED:
        word = values.to(tl.int32, bitcast=True)
        nearest = (word + 0x7FFF + ((word >> 16) & 1)) >> 16
        nearest = tl.where(values == values, nearest, 0x7FC0)  # noqa: PLR0124  # NaN
        return nearest.to(tl.int16).to(tl.bfloat16, bitcast=True)
    return values.to(tl.bfloat16)


@triton.jit  # type: ignore[untyped-decorator]
def least(one: tl.tensor, other: tl.tensor) -> tl.tensor:
    """Return the smaller number, or NaN if one is NaN."""
    return tl.minimum(one, other, propagate_nan=tl.PropagateNan.ALL)


@triton.jit  # type: ignore[untyped-decorator]
def most(one: tl.tensor, other: tl.tensor) -> tl.tensor:
    """Return the larger number, or NaN if one is NaN."""
    return tl.maximum(one, other, propagate_nan=tl.PropagateNan.ALL)


def signed(number: int) -> int:
    """Return the lower 32 bits as a signed number: for another range, Triton compiles anew."""
    return (number & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
