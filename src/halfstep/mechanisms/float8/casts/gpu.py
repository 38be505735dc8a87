"""Casts of matrices to FP8 with their transposes, in Triton: one pass for scales, one for values.

The kernels give the same bits as `plain.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton  # type: ignore[import-untyped]  # it has no types
from triton import language as tl

from halfstep.formats import torch_dtype
from halfstep.mechanisms.float8.casts.form import MULTIPLE
from halfstep.mechanisms.products.quantised import Operand

if TYPE_CHECKING:
    from halfstep.formats import Format
    from halfstep.mechanisms.float8.casts.form import Wanted
    from halfstep.mechanisms.products.quantised import Sides

TILE, WARPS = 128, 8
"""Rows and columns of the part of a matrix that a program reads: a row is a line of the cache."""

# Triton evaluates the annotations of a kernel, and accepts only its own names in them.


@triton.jit  # type: ignore[untyped-decorator]
def _largest_kernel(  # noqa: PLR0913, PLR0917  # a kernel takes no structures
    source: tl.tensor,
    of_rows: tl.tensor,
    of_columns: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    down: tl.tensor,
    across: tl.tensor,
    rowwise: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Write the bits of the largest magnitudes: of each row and column, or of all to `of_rows`."""
    row = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    column = tl.program_id(1).to(tl.int64) * tile + tl.arange(0, tile)
    inside = (row < height)[:, None] & (column < width)[None, :]
    at = source + row[:, None] * down + column[None, :] * across
    # As integers, the bits of magnitudes are in the order of their values, with NaN on top.
    bits = tl.load(at, inside, 0.0).to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    if rowwise:
        if rows:
            tl.atomic_max(of_rows + row, tl.max(bits, 1), row < height)
        if columns:
            tl.atomic_max(of_columns + column, tl.max(bits, 0), column < width)
    else:
        tl.atomic_max(of_rows, tl.max(tl.max(bits, 1), 0))


@triton.jit  # type: ignore[untyped-decorator]
def _scale(bits: tl.tensor, top: tl.constexpr) -> tl.tensor:
    largest = bits.to(tl.float32, bitcast=True)
    usable = (bits > 0) & (bits <= 0x7F800000)
    # The inner `where` avoids a division by zero. An inf gives the scale 0.
    scale = tl.where(usable, tl.div_rn(top, tl.where(usable, largest, 1.0)), 1.0)
    return tl.where(scale > 3.4028234663852886e38, 3.4028234663852886e38, scale)


@triton.jit  # type: ignore[untyped-decorator]
def _rounded(
    values: tl.tensor, scale: tl.tensor, top: tl.constexpr, mantissa: tl.constexpr
) -> tl.tensor:
    """Return the codes of scaled values, to nearest, ties to even; FP8 has 7 - mantissa exponents.

    In integers, because Triton's interpreter truncates where the hardware's cast rounds.
    """
    bias: tl.constexpr = 2 ** (6 - mantissa) - 1
    scaled = values * scale
    # A comparison keeps a NaN.
    scaled = tl.where(scaled > top, top, tl.where(scaled < -top, -top, scaled))
    bits = scaled.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    dropped: tl.constexpr = 23 - mantissa
    even = magnitude + (2 ** (dropped - 1) - 1) + ((magnitude >> dropped) & 1)
    normal = (even >> dropped) - ((127 - bias) << mantissa)
    # Next to 2^23, fp32 has whole numbers only: the sum rounds to multiples of the smallest one.
    steps = tl.abs(scaled) * (2.0 ** (bias - 1 + mantissa)) + 8388608.0
    subnormal = steps.to(tl.int32, bitcast=True) - 0x4B000000
    code = tl.where(magnitude >= (128 - bias) << 23, normal, subnormal)
    code = tl.where(magnitude > 0x7F800000, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit  # type: ignore[untyped-decorator]
def _cast_kernel(  # noqa: PLR0913, PLR0917  # a kernel takes no structures
    source: tl.tensor,
    bits_of_rows: tl.tensor,
    bits_of_columns: tl.tensor,
    rows_at: tl.tensor,
    rows_decode: tl.tensor,
    columns_at: tl.tensor,
    columns_decode: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    padded: tl.tensor,
    down: tl.tensor,
    across: tl.tensor,
    rowwise: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    top: tl.constexpr,
    mantissa: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Write the values of both operands, and the numbers that decode them."""
    row = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    column = tl.program_id(1).to(tl.int64) * tile + tl.arange(0, tile)
    inside = (row < height)[:, None] & (column < width)[None, :]
    at = source + row[:, None] * down + column[None, :] * across
    values = tl.load(at, inside, 0.0).to(tl.float32)
    if rowwise:
        if rows:
            scale = _scale(tl.load(bits_of_rows + row, row < height, 0), top)
            tl.store(
                rows_at + row[:, None] * width + column[None, :],
                _rounded(values, scale[:, None], top, mantissa),
                inside,
            )
            tl.store(rows_decode + row, tl.div_rn(1.0, scale), row < height)
        if columns:
            scale = _scale(tl.load(bits_of_columns + column, column < width, 0), top)
            turned = tl.trans(_rounded(values, scale[None, :], top, mantissa))
            within = (column < width)[:, None] & (row < padded)[None, :]
            tl.store(columns_at + column[:, None] * padded + row[None, :], turned, within)
            tl.store(columns_decode + column, tl.div_rn(1.0, scale), column < width)
    else:
        scale = _scale(tl.load(bits_of_rows), top)
        narrow = _rounded(values, scale, top, mantissa)
        if rows:
            tl.store(rows_at + row[:, None] * width + column[None, :], narrow, inside)
        if columns:
            within = (column < width)[:, None] & (row < padded)[None, :]
            tl.store(columns_at + column[:, None] * padded + row[None, :], tl.trans(narrow), within)
        if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
            tl.store(rows_decode, tl.div_rn(1.0, scale))
            tl.store(columns_decode, tl.div_rn(1.0, scale))


def cast(matrix: torch.Tensor, format_: Format, wanted: Wanted, out: Sides = (None, None)) -> Sides:
    """Return the operands of a matrix; see `cast.cast`."""
    height, width = matrix.shape
    padded = height + -height % MULTIPLE
    dtype = torch_dtype(format_.name)

    def operand(before: Operand | None, shape: tuple[int, int]) -> Operand:
        if before is not None:
            return before
        decodes = (shape[0], 1) if wanted.rowwise else ()
        return Operand(
            matrix.new_empty(shape, dtype=dtype), matrix.new_empty(decodes, dtype=torch.float32)
        )

    made = operand(out[0], (height, width)) if wanted.rows else None
    turned = operand(out[1], (width, padded)) if wanted.columns else None
    first, second = made or turned, turned or made
    assert first is not None
    assert second is not None
    counts = (height * wanted.rows, width * wanted.columns) if wanted.rowwise else (1, 0)
    bits = matrix.new_zeros(sum(counts), dtype=torch.int32)
    strides = matrix.stride()
    flags = {"rowwise": wanted.rowwise, "rows": wanted.rows, "columns": wanted.columns}
    grid = triton.cdiv(padded if wanted.columns else height, TILE), triton.cdiv(width, TILE)
    _largest_kernel[grid](
        matrix,
        bits,
        bits[counts[0] :],
        height,
        width,
        *strides,
        **flags,
        tile=TILE,
        num_warps=WARPS,
    )
    _cast_kernel[grid](
        matrix,
        bits,
        bits[counts[0] :],
        first.values.view(torch.uint8),
        first.decode,
        second.values.view(torch.uint8),
        second.decode,
        height,
        width,
        padded,
        *strides,
        **flags,
        top=format_.max,
        mantissa=format_.mantissa_bits,
        tile=TILE,
        num_warps=WARPS,
    )
    return made, turned
