"""Computes half products as tensor cores do: half inputs, fp32 arithmetic, one rounding.

The conversion of a half number to fp32 is exact, so an fp32 kernel on widened inputs computes each
product exactly and accumulates in fp32. Its result is rounded once, to nearest even; overflow
gives inf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.kernels.scratch import scratch, wide_copies
from halfstep.kernels.weight_gradients import weight_gradient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from halfstep.kernels.products import Operator


class Widened:
    """An `Arithmetic` for half dtypes: products computed by fp32 kernels."""

    format = None
    only_widens = True

    def product(
        self,
        operator: Operator,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Widen the inputs and round the results; the backward reuses copies of the forward."""
        dtype = next(value.dtype for value in args if isinstance(value, torch.Tensor))
        if operator.name == "convolution" and torch.is_grad_enabled():
            wide = _kept(args)
        elif operator.name == "convolution_backward":
            wide = _taken(args)
        else:
            wide = _wide(args)
        if kwargs:
            kwargs = _wide_values(kwargs)
        results = original(*wide, **kwargs)
        if operator.name == "convolution_backward" and results[1] is not None:
            images, weight, bias = results
            weight = weight_gradient(weight, dtype)
            return narrowed(images, dtype), weight, narrowed(bias, dtype)
        return narrowed(results, dtype)

    def attention(
        self,
        original: Callable[..., Any],
        tensors: tuple[torch.Tensor, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[torch.Tensor, ...]:
        """Compute attention in fp32, with scores and softmax; logsumexp is always fp32."""
        results = original(*_wide(tensors), *args, **_wide_values(kwargs))
        half = tensors[0].dtype
        if len(tensors) == 3:
            output, logsumexp = results
            return output.to(half), logsumexp
        return tuple(each.to(half) for each in results)


def _wide(args: Iterable[Any], first_place: int = 0) -> list[Any]:
    """Widen the half tensors among positional arguments into reused buffers."""
    return [
        scratch.widen(arg, place) if is_half(arg) else arg
        for place, arg in enumerate(args, first_place)
    ]


def _kept(args: tuple[Any, ...]) -> list[Any]:
    """Widen the arguments of a convolution, and keep copies of the factors for its backward."""
    images, weight, *others = args
    wide_images = wide_copies.widen(images) if weight.requires_grad else None
    wide_weight = wide_copies.widen(weight) if images.requires_grad else None
    return [
        scratch.widen(images, 0) if wide_images is None else wide_images,
        scratch.widen(weight, 1) if wide_weight is None else wide_weight,
        *_wide(others, 2),
    ]


def _taken(args: tuple[Any, ...]) -> list[Any]:
    """Return the widened arguments of a convolution's backward, using copies of its forward."""
    grad, images, weight, *others = args
    wide_images, wide_weight = wide_copies.take(images), wide_copies.take(weight)
    return [
        scratch.widen(grad, 0),
        scratch.widen(images, 1) if wide_images is None else wide_images,
        scratch.widen(weight, 2) if wide_weight is None else wide_weight,
        *others,
    ]


def is_half(value: Any) -> bool:
    """Tell whether `value` is an fp16 or bf16 tensor."""
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _wide_values(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Widen the half tensors among keyword arguments, which are small or rare."""
    return {name: value.float() if is_half(value) else value for name, value in kwargs.items()}


def narrowed(result: Any, dtype: torch.dtype) -> Any:
    """Round a tensor, or each tensor of a tuple, to `dtype`; return other values unchanged."""
    if isinstance(result, torch.Tensor):
        return result.to(dtype)
    if isinstance(result, tuple):
        return tuple(narrowed(each, dtype) for each in result)
    return result
