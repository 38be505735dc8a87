"""Casts in Triton kernels whose bits are also those of Triton's interpreter, in which tests run."""

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
