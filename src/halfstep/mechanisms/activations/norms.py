"""Norm layers that save their normalised values instead of their input.

The gradient needs only the normalised input. If the input itself were rounded, a row or channel of
small deviation would lose its values next to a larger one in the same group, and the backward would
divide the error by this small deviation. Normalised rows and channels all have the same magnitude.
In this file, `deviation` is the reciprocal of the standard deviation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import layer_norm, rms_norm

from halfstep.mechanisms.activations.store import refuse_second_derivative

if TYPE_CHECKING:
    from collections.abc import Callable


class LayerNorm(torch.autograd.Function):
    """`layer_norm`; saves the normalised values."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        shape: list[int],
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        """Normalise the last dimensions, whose sizes are `shape`."""
        result = layer_norm(values, shape, weight, bias, eps)  # autocast may choose its dtype
        given = values.to(result.dtype)
        normalised, _, deviation = torch.native_layer_norm(given, shape, None, None, eps)
        if weight is not None:  # with fp32 weights and half inputs, torch uses fp32 statistics
            deviation = deviation.to(weight.dtype)
        ctx.save_for_backward(normalised, deviation, weight, bias)
        ctx.shape, ctx.dtype = shape, values.dtype
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradients of values, weight and bias."""
        refuse_second_derivative()
        normalised, deviation, weight, bias = ctx.saved_tensors
        needed = [ctx.needs_input_grad[0], ctx.needs_input_grad[2], ctx.needs_input_grad[3]]
        of_values, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
            gradient, normalised, ctx.shape, torch.zeros_like(deviation),
            torch.ones_like(deviation), weight, bias, needed,
        )  # fmt: skip
        if of_values is not None:
            of_values = of_values.mul_(deviation).to(ctx.dtype)
        return of_values, None, of_weight, of_bias, None


class GroupNorm(torch.autograd.Function):
    """`group_norm`, and `instance_norm` with a group per channel; saves the normalised values."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        call: Callable[..., torch.Tensor],
        groups: int,
        eps: float,
    ) -> torch.Tensor:
        """Return `call(values, weight=weight, bias=bias)`, which normalises `groups` groups."""
        result = call(values, weight=weight, bias=bias)  # autocast may choose its dtype
        sizes = values.size(0), values.size(1), values[0, 0].numel()
        given = values.float().contiguous()
        normalised, _, deviation = torch.native_group_norm(given, None, None, *sizes, groups, eps)
        ctx.sizes = *sizes, groups
        ctx.save_for_backward(normalised.to(values.dtype), deviation, weight)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradients of values, weight and bias."""
        refuse_second_derivative()
        kept, deviation, weight = ctx.saved_tensors
        of_values, of_weight, of_bias = torch.ops.aten.native_group_norm_backward(
            gradient.float().contiguous(), kept.float(), torch.zeros_like(deviation),
            torch.ones_like(deviation), None if weight is None else weight.float(), *ctx.sizes,
            list(ctx.needs_input_grad[:3]),
        )  # fmt: skip
        if of_values is not None:
            of_values.view(*deviation.shape, -1).mul_(deviation[..., None])
        # Autograd casts these gradients to the dtypes of values, weight and bias.
        return of_values, of_weight, of_bias, None, None, None


class RMSNorm(torch.autograd.Function):
    """`rms_norm`; saves the normalised values."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        shape: list[int],
        weight: torch.Tensor | None,
        eps: float | None,
    ) -> torch.Tensor:
        """Divide by the root mean square over the last dimensions, whose sizes are `shape`."""
        result = rms_norm(values, shape, weight, eps)
        ctx.dimensions = list(range(-len(shape), 0))
        given = values.float()
        # torch's default for half inputs is the eps of fp32 too.
        smallest = torch.finfo(given.dtype).eps if eps is None else eps
        scale = (given.square().mean(ctx.dimensions, keepdim=True) + smallest).rsqrt()
        ctx.save_for_backward((given * scale).to(values.dtype), scale, weight)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradients of values and weight."""
        refuse_second_derivative()
        kept, scale, weight = ctx.saved_tensors
        gradient, normalised = gradient.float(), kept.float()
        of_weight = None
        if weight is not None:
            leading = list(range(gradient.dim() - len(ctx.dimensions)))
            of_weight = (gradient * normalised).sum(leading).to(weight.dtype)
            gradient = gradient * weight
        along = (gradient * normalised).mean(ctx.dimensions, keepdim=True)
        of_values = (gradient - normalised * along).mul_(scale).to(kept.dtype)
        return of_values, None, of_weight, None
