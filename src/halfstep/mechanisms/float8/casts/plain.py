"""Casts to FP8 in plain PyTorch, which define the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from halfstep.mechanisms.float8.casts.form import MULTIPLE
from halfstep.mechanisms.float8.quantiser import rounded, scale_of
from halfstep.mechanisms.products.quantised import Operand

if TYPE_CHECKING:
    from halfstep.formats import Format
    from halfstep.mechanisms.float8.casts.form import Wanted
    from halfstep.mechanisms.products.quantised import Sides


def cast(matrix: torch.Tensor, format_: Format, wanted: Wanted) -> Sides:
    """Return the operands of a matrix; see `cast.cast`."""
    magnitudes = matrix.abs()
    rows = columns = None
    if not wanted.rowwise:
        scale = scale_of(magnitudes.amax().float(), format_)
        values = rounded(matrix, scale, format_).contiguous()
        rows = Operand(values, 1 / scale) if wanted.rows else None
        columns = Operand(_transposed(values), 1 / scale) if wanted.columns else None
        return rows, columns
    if wanted.rows:
        scale = scale_of(magnitudes.amax(1, keepdim=True).float(), format_)
        rows = Operand(rounded(matrix, scale, format_).contiguous(), 1 / scale)
    if wanted.columns:
        scale = scale_of(magnitudes.amax(0, keepdim=True).float(), format_)
        columns = Operand(_transposed(rounded(matrix, scale, format_)), (1 / scale).view(-1, 1))
    return rows, columns


def _transposed(values: torch.Tensor) -> torch.Tensor:
    """Return the transpose, contiguous, with zeros at the end of its rows."""
    # As bytes, because not every operator has kernels for FP8.
    padded = pad(values.view(torch.uint8).t(), [0, -len(values) % MULTIPLE])
    return padded.contiguous().view(values.dtype)
