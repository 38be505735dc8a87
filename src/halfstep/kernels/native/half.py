"""`half.c`: passes over large fp32 and half tensors on the CPU, fewer than PyTorch makes.

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
    from collections.abc import Callable, Sequence

_SOURCE = Path(__file__).with_name("half.c")
HEADER = Path(__file__).with_name("numbers.h")
"""What the C files of this folder include."""

MANY = 1 << 20
"""Elements of all gradients from which C unscales them faster than PyTorch: no cache holds them."""
_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None where they cannot be had."""
    return load(_SOURCE, HEADER, otherwise="tensors are rounded and unscaled by plain PyTorch")


def round_to_half(
    values: torch.Tensor,
    dtype: torch.dtype,
    *,
    narrow: torch.Tensor | None = None,
    wide: torch.Tensor | None = None,
) -> bool:
    """Round fp32 values to a half format in one pass, and tell whether it is done.

    The versions of the tensors that are written to are the caller's to count.

    Args:
        values: fp32 tensor of any shape without gaps.
        dtype: The half format.
        narrow: Where to write the half numbers, with the strides of `values`; None leaves them out.
        wide: Where to write the same numbers in fp32, likewise; it may be `values`.
    """
    functions = _in_lanes()
    if functions is None or not is_dense(values):
        return False
    function = getattr(functions, f"round_{_NAMES[dtype]}")
    _in_parts(function, values.numel(), (values, narrow, wide))
    return True


def widen(narrow: torch.Tensor, wide: torch.Tensor) -> bool:
    """Write half numbers without gaps to an fp32 tensor of their strides; tell whether it did."""
    functions = _in_lanes()
    if functions is None or not is_dense(narrow, narrow.dtype):
        return False
    function = getattr(functions, f"widen_{_NAMES[narrow.dtype]}")
    _in_parts(function, narrow.numel(), (narrow, wide))
    return True


def _in_parts(
    function: Callable[..., object], elements: int, tensors: Sequence[torch.Tensor | None]
) -> None:
    """Call a C function that takes arrays and their size, on as many threads as pay."""
    places = [(t.data_ptr(), t.element_size()) if t is not None else (0, 0) for t in tensors]

    def part(first: int, count: int) -> None:
        arrays = [ctypes.c_void_p(at + size * first) for at, size in places]
        function(*arrays, ctypes.c_int64(count))

    in_threads(part, elements, elements)


def unscale(grads: Sequence[torch.Tensor], inverse: torch.Tensor, found_inf: torch.Tensor) -> bool:
    """Do what `torch._amp_foreach_non_finite_check_and_unscale_` does; tell whether it is done."""
    ends = list(accumulate([grad.numel() for grad in grads]))
    functions = library() if ends and ends[-1] >= MANY else None
    if functions is None or not all(map(is_dense, (*grads, inverse, found_inf))):
        return False
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


def is_dense(tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Tell whether a tensor of a dtype is in real memory of the CPU, without gaps."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.dtype == dtype
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and (tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last))
    )
