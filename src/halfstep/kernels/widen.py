"""Half products computed as tensor cores do: half inputs, fp32 arithmetic, one rounding.

Widening a half number is exact, so an fp32 kernel on widened inputs forms each product exactly and
accumulates in fp32; its result is rounded once, to nearest even, and overflows to inf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.kernels.scratch import scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from halfstep.kernels.products import Operator


class Widened:
    """An arithmetic of half dtypes: through fp32 kernels."""

    def product(
        self,
        operator: Operator,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Widen the inputs, into scratch memory, and round what comes out."""
        dtype = next(value.dtype for value in args if isinstance(value, torch.Tensor))
        del operator
        return narrowed(original(*_wide(args), **_wide_values(kwargs)), dtype)

    def attention(
        self,
        original: Callable[..., Any],
        tensors: tuple[torch.Tensor, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[torch.Tensor, ...]:
        """Compute in fp32, scores and softmax too; logsumexp is fp32 natively and stays so."""
        results = original(*_wide(tensors), *args, **_wide_values(kwargs))
        half = tensors[0].dtype
        if len(tensors) == 3:
            output, logsumexp = results
            return output.to(half), logsumexp
        return tuple(each.to(half) for each in results)


def _wide(args: Iterable[Any]) -> list[Any]:
    """Widen the half tensors among positional arguments, into scratch memory."""
    return [scratch.widen(arg, place) if is_half(arg) else arg for place, arg in enumerate(args)]


def is_half(value: Any) -> bool:
    """Tell whether `value` is an fp16 or bf16 tensor."""
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _wide_values(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Widen those among keyword arguments, which are small or rare."""
    return {name: value.float() if is_half(value) else value for name, value in kwargs.items()}


def narrowed(result: Any, dtype: torch.dtype) -> Any:
    """Round a tensor, or each of a tuple, to `dtype`."""
    if isinstance(result, torch.Tensor):
        return result.to(dtype)
    if isinstance(result, tuple):
        return tuple(narrowed(each, dtype) for each in result)
    return result
