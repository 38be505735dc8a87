"""Half operators computed as tensor cores do: half inputs, fp32 arithmetic, one rounding.

Widening a half number is exact, so an fp32 kernel on widened inputs forms each product exactly and
accumulates in fp32; its result is rounded once, to nearest even, and overflows to inf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.kernels.scratch import scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from halfstep.kernels.registration import Kernel

    Chooses = Callable[[torch.dtype], bool]


def widened(chosen: Chooses) -> Kernel:
    """Return a kernel for operators that return new tensors.

    Args:
        chosen: Whether tensors of a dtype are computed this way; others go to the original.
    """

    def kernel(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        dtype = _only_dtype((*args, *kwargs.values()))
        if dtype is None or not chosen(dtype):
            return original(*args, **kwargs)
        return _narrow(original(*wide(args), **wide_values(kwargs)), dtype)

    return kernel


def widened_into(chosen: Chooses, function: Callable[..., torch.Tensor]) -> Kernel:
    """Return a kernel for the in-place and `out=` overloads of `function`."""

    def kernel(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        dtype = _only_dtype((*args, *kwargs.values()))
        if dtype is None or not chosen(dtype):
            return original(*args, **kwargs)
        target: torch.Tensor = kwargs.pop("out", args[0])
        result = function(*wide(args), **wide_values(kwargs))
        if target.shape != result.shape:
            target.resize_(result.shape)
        return target.copy_(result)

    return kernel


def _only_dtype(values: Iterable[Any]) -> torch.dtype | None:
    """Return the dtype that all tensors share; a mixture is the original kernel's to refuse."""
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    return dtypes.pop() if len(dtypes) == 1 else None


def wide(args: Iterable[Any]) -> list[Any]:
    """Widen the floating tensors among positional arguments, into scratch memory."""
    return [scratch.widen(arg, place) if _is_half(arg) else arg for place, arg in enumerate(args)]


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def wide_values(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Widen those among keyword arguments, which are small or rare."""
    return {name: value.float() if _is_half(value) else value for name, value in kwargs.items()}


def _narrow(result: Any, dtype: torch.dtype) -> Any:
    if isinstance(result, torch.Tensor):
        return result.to(dtype)
    if isinstance(result, tuple):
        return tuple(_narrow(each, dtype) for each in result)
    return result
