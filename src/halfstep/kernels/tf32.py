"""TF32 on devices that lack it: fp32 products of inputs with a 10-bit mantissa.

TF32 tensor cores read 19 of an fp32 input's 32 bits and accumulate in fp32; only what is multiplied
is rounded, not what is added (a bias) or returned.
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
"""Bits of an fp32 mantissa that TF32 has not."""


@contextmanager
def tf32_products(device_type: str) -> Iterator[None]:
    """Compute fp32 products on "cpu" or "cuda" as TF32 tensor cores do, in every thread."""
    with ON[device_type].computed({torch.float32: Tf32()}):
        yield


@contextmanager
def ieee_products(device_type: str) -> Iterator[None]:
    """Compute fp32 products on "cpu" or "cuda" exactly, though TF32 is rehearsed around it."""
    with ON[device_type].computed({torch.float32: None}):
        yield


class Tf32:
    """An arithmetic of fp32."""

    only_widens = False

    def product(
        self,
        operator: Operator,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Round the factors."""
        # `dot` and `addmv` have no kernel on tensor cores.
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
        # A bias is added, so its gradient is a sum of what was not rounded.
        others = [0, *range(2, gradient.dim())]
        return by_input, by_weight, gradient.sum(others) if output_mask[2] else None

    def attention(
        self,
        original: Callable[..., Any],
        tensors: tuple[torch.Tensor, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[torch.Tensor, ...]:
        """Round queries, keys, values and gradients; the softmax between stays as it is."""
        results: tuple[torch.Tensor, ...] = original(*map(round_to_tf32, tensors), *args, **kwargs)
        return results


def round_to_tf32(value: torch.Tensor) -> torch.Tensor:
    """Round fp32 to the nearest TF32 number, ties to even: `round_to(value, "tf32")`, faster."""
    bits = value.view(torch.int32)
    # In place on a clone, whose strides are those of `value` where a dimension has size one too:
    # they decide the layout of what a convolution returns.
    rounded = bits.clone()
    rounded >>= _DROPPED
    rounded &= 1
    rounded += (1 << (_DROPPED - 1)) - 1
    rounded += bits
    rounded &= -1 << _DROPPED
    # The carry of a NaN whose mantissa is full would run into the sign.
    return rounded.view(torch.float32).masked_fill_(value.isnan(), torch.nan)
