"""TF32 on devices that lack it: fp32 products of inputs with a 10-bit mantissa.

TF32 tensor cores read 19 of the 32 bits of an fp32 input, and accumulate in fp32. So only the
factors are rounded, not the added terms (a bias) and not the result.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from halfstep.kernels.products import ON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfstep.kernels.products import Operator

_DROPPED = 13
"""Number of mantissa bits that fp32 has and TF32 does not have."""


@contextmanager
def tf32_products(device_type: str) -> Iterator[None]:
    """Compute fp32 products on "cpu" or "cuda" as TF32 tensor cores do, in every thread."""
    with ON[device_type].computed({torch.float32: Tf32()}):
        yield


@contextmanager
def ieee_products(device_type: str) -> Iterator[None]:
    """Compute fp32 products on "cpu" or "cuda" in IEEE fp32, even inside `tf32_products`."""
    with ON[device_type].computed({torch.float32: None}):
        yield


class Tf32:
    """An `Arithmetic` for fp32: products of factors that are rounded to TF32."""

    format = "tf32"
    only_widens = False

    def product(
        self,
        operator: Operator,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Compute one operator with factors rounded to TF32."""
        # `dot` and `addmv` do not use tensor cores.
        if operator.name in ("dot", "vdot", "addmv"):
            return original(*args, **kwargs)
        rounded = [
            round_to_tf32(arg) if place in operator.factors else arg
            for place, arg in enumerate(args)
        ]
        if operator.name != "convolution_backward":
            return original(*rounded, **kwargs)
        gradient, output_mask = args[0], args[-1]
        by_input, by_weight, _ = original(*rounded[:-1], [*output_mask[:2], False], **kwargs)
        # The bias is not a factor, so its gradient is the sum of the gradient before rounding.
        others = [0, *range(2, gradient.dim())]
        return by_input, by_weight, gradient.sum(others) if output_mask[2] else None

    def attention(
        self,
        original: Callable[..., Any],
        tensors: tuple[torch.Tensor, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[torch.Tensor, ...]:
        """Compute attention with `tensors` rounded to TF32; the softmax inside is not rounded."""
        results: tuple[torch.Tensor, ...] = original(*map(round_to_tf32, tensors), *args, **kwargs)
        return results


def round_to_tf32(value: torch.Tensor) -> torch.Tensor:
    """Round fp32 to the nearest TF32 number, ties to even: a faster `round_to(value, "tf32")`."""
    bits = value.view(torch.int32)
    # In place on a clone, because a clone keeps the strides of `value` even in dimensions of size
    # one. They determine the layout of a convolution's result.
    rounded = bits.clone()
    rounded >>= _DROPPED
    rounded &= 1
    rounded += (1 << (_DROPPED - 1)) - 1
    rounded += bits
    rounded &= -1 << _DROPPED
    # A NaN with a mantissa of all ones would carry into the sign bit.
    return rounded.view(torch.float32).masked_fill_(value.isnan(), torch.nan)
