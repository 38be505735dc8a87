"""Casts of matrices to FP8 with their transposes.

Both ways give the same bits: plain PyTorch, which `torch.compile` fuses into the passes before and
after a cast, and Triton kernels for eager casts on CUDA.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from halfstep.mechanisms.float8.casts import plain

if TYPE_CHECKING:
    from halfstep.formats import Format
    from halfstep.mechanisms.float8.casts.form import Wanted
    from halfstep.mechanisms.products.quantised import Operand, Sides

_HAS_TRITON = find_spec("triton") is not None


def cast(matrix: torch.Tensor, format_: Format, wanted: Wanted, out: Sides = (None, None)) -> Sides:
    """Return the operands of a matrix, (samples, features), in an FP8 format.

    Args:
        matrix: The matrix, in fp32, bf16 or fp16. It has at least one element.
        format_: The FP8 format.
        wanted: Which operands to make. The transpose has zeros up to a multiple of `MULTIPLE`.
        out: Operands of an earlier call, which are written again.

    Returns:
        Operands that share no tensor, because `torch.compile` takes none twice.
    """
    if not (wanted.rows or wanted.columns):
        return None, None
    if matrix.is_cuda and _HAS_TRITON and not torch.compiler.is_compiling():
        from halfstep.mechanisms.float8.casts import gpu

        return gpu.cast(matrix, format_, wanted, out)
    made = plain.cast(matrix, format_, wanted)
    return _written(out[0], made[0]), _written(out[1], made[1])


def _written(before: Operand | None, made: Operand | None) -> Operand | None:
    """Return `made`, in the memory of `before` if there is one."""
    if before is None or made is None:
        return made
    before.values.copy_(made.values)
    before.decode.copy_(made.decode)
    return before
