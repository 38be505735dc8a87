"""`half.c`: passes over fp32 gradients on the CPU, in place, where PyTorch makes copies.

As with `fused.py`, each function says by what it returns where it has done nothing, and its caller
then does the same with PyTorch.
"""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from halfstep.kernels.native.compiled import in_threads, load

if TYPE_CHECKING:
    from collections.abc import Sequence

_SOURCE = Path(__file__).with_name("half.c")
_ROUND = {torch.float16: "round_fp16", torch.bfloat16: "round_bf16"}


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None where they cannot be had."""
    return load(_SOURCE, otherwise="gradients are rounded and unscaled by plain PyTorch")


def round_in_place(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """Round fp32 values to a half format in place.

    Args:
        values: fp32 tensor of any shape without gaps, which nobody else reads.
        dtype: The half format.

    Returns:
        The half tensor that `values.to(dtype)` gives; None where nothing has been done.
    """
    functions = _in_lanes()
    if functions is None or not _is_dense(values):
        return None
    narrow = torch.empty_like(values, dtype=dtype)
    function = getattr(functions, _ROUND[dtype])
    wide_at, narrow_at = values.data_ptr(), narrow.data_ptr()

    def part(first: int, count: int) -> None:
        function(
            ctypes.c_void_p(wide_at + 4 * first),
            ctypes.c_void_p(narrow_at + 2 * first),
            ctypes.c_int64(count),
        )

    in_threads(part, values.numel(), values.numel())
    return narrow


def unscale(grads: Sequence[torch.Tensor], inverse: torch.Tensor, found_inf: torch.Tensor) -> bool:
    """Do what `torch._amp_foreach_non_finite_check_and_unscale_` does; tell whether it is done."""
    functions = library()
    if functions is None or not all(map(_is_dense, (*grads, inverse, found_inf))):
        return False
    ends = list(accumulate(grad.numel() for grad in grads))
    arrays = (ctypes.c_void_p * len(grads))(*(grad.data_ptr() for grad in grads))
    c_ends = (ctypes.c_int64 * len(grads))(*ends)
    factor = ctypes.c_float(inverse.item())
    found = []

    def part(first: int, count: int) -> None:
        c_range = ctypes.c_int64(first), ctypes.c_int64(count)
        found.append(functions.unscale(arrays, c_ends, *c_range, factor))

    in_threads(part, ends[-1], ends[-1])
    if any(found):
        found_inf.fill_(1.0)
    return True


@cache
def _in_lanes() -> ctypes.CDLL | None:
    """Return the functions where they round several numbers at once, as PyTorch's own do."""
    functions = library()
    has = functions is not None and ctypes.c_int32.in_dll(functions, "in_lanes").value
    return functions if has else None


def _is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is fp32 in real memory of the CPU, without gaps."""
    return (
        type(tensor) is torch.Tensor
        and tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and (tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last))
    )
