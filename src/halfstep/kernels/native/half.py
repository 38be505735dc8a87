"""`half.c`: operations on large fp32 and half CPU tensors, in fewer passes than PyTorch's.

As in `fused.py`, a function that returns False has done nothing, and its caller then does the same
with PyTorch.
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
    from collections.abc import Callable, Sequence

_SOURCE = Path(__file__).with_name("half.c")
HEADER = Path(__file__).with_name("numbers.h")
"""The header that the C files of this folder include."""

MANY = 1 << 20
"""Elements of all gradients from which C is faster than PyTorch: they do not fit into a cache."""
_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None if they cannot be compiled or loaded."""
    return load(_SOURCE, HEADER, otherwise="tensors are rounded and unscaled by plain PyTorch")


def round_to_half(
    values: torch.Tensor,
    dtype: torch.dtype,
    *,
    narrow: torch.Tensor | None = None,
    wide: torch.Tensor | None = None,
) -> bool:
    """Round fp32 values to a half format in one pass; return whether this was done.

    The caller must increment the version counters of the tensors that are written.

    Args:
        values: fp32 tensor of any shape, without gaps in memory.
        dtype: The half format.
        narrow: Tensor for the half numbers, with the strides of `values`; None for no half numbers.
        wide: Tensor for the same numbers in fp32, with the strides of `values`; it may be `values`,
            or None.
    """
    functions = _in_lanes()
    if functions is None or not is_dense(values):
        return False
    function = getattr(functions, f"round_{_NAMES[dtype]}")
    _in_parts(function, values.numel(), (values, narrow, wide))
    return True


def widen(narrow: torch.Tensor, wide: torch.Tensor) -> bool:
    """Widen a half tensor into an fp32 tensor of the same strides; return whether this was done."""
    functions = _in_lanes()
    if functions is None or not is_dense(narrow, narrow.dtype):
        return False
    function = getattr(functions, f"widen_{_NAMES[narrow.dtype]}")
    _in_parts(function, narrow.numel(), (narrow, wide))
    return True


def _in_parts(
    function: Callable[..., object], elements: int, tensors: Sequence[torch.Tensor | None]
) -> None:
    """Call a C function that takes arrays and their size, on several threads if this pays."""
    places = [(t.data_ptr(), t.element_size()) if t is not None else (0, 0) for t in tensors]

    def part(first: int, count: int) -> None:
        arrays = [ctypes.c_void_p(at + size * first) for at, size in places]
        function(*arrays, ctypes.c_int64(count))

    in_threads(part, elements, elements)


def unscale(grads: Sequence[torch.Tensor], inverse: torch.Tensor, found_inf: torch.Tensor) -> bool:
    """Do the same as `torch._amp_foreach_non_finite_check_and_unscale_`; return whether done."""
    ends = list(accumulate([grad.numel() for grad in grads]))
    functions = library() if ends and ends[-1] >= MANY else None
    if functions is None or not all(map(is_dense, (*grads, inverse, found_inf))):
        return False
    arrays, c_ends = places(grads), (ctypes.c_int64 * len(grads))(*ends)
    factor = ctypes.c_float(inverse.item())
    found = []

    def part(first: int, count: int) -> None:
        c_range = ctypes.c_int64(first), ctypes.c_int64(count)
        found.append(functions.unscale(arrays, c_ends, *c_range, factor))

    in_threads(part, ends[-1], ends[-1])
    if any(found):
        found_inf.fill_(1.0)
    return True


def places(tensors: Sequence[torch.Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of tensors as a C array."""
    return (ctypes.c_void_p * len(tensors))(*map(torch.Tensor.data_ptr, tensors))


@cache
def _in_lanes() -> ctypes.CDLL | None:
    """Return the functions if they are vectorised, as PyTorch's own casts are; else None."""
    functions = library()
    has = functions is not None and ctypes.c_int32.in_dll(functions, "in_lanes").value
    return functions if has else None


def is_dense(tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Tell whether a tensor has `dtype` and is in CPU memory without gaps, and is no subclass."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.dtype == dtype
        and tensor.is_cpu
        and tensor.layout == torch.strided
        and (tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last))
    )
