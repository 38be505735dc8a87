"""Norm layers that keep what they normalised to, in place of what came in.

The gradient needs the input with its mean and deviation taken out. Rounded as it came in, a row or
channel of small deviation would be lost beside a larger one in its group, and the error divided by
that deviation; normalised, all of them are of one size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import layer_norm, rms_norm

from halfstep.techniques.activations.store import refuse_second_derivative

if TYPE_CHECKING:
    from collections.abc import Callable

_TRAINING = True


class LayerNorm(torch.autograd.Function):
    """`layer_norm`; keeps what the layer normalised to."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        shape: list[int],
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        """Normalise the last dimensions, those of `shape`."""
        result = layer_norm(values, shape, weight, bias, eps)  # in the format that autocast says
        given = values.to(result.dtype)
        normalised, _, deviation = torch.native_layer_norm(given, shape, None, None, eps)
        if weight is not None:  # a layer of fp32 over a half input has statistics in fp32
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


class BatchNorm(torch.autograd.Function):
    """`batch_norm` on the statistics of the batch; keeps what the layer normalised to."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        momentum: float,
        eps: float,
    ) -> torch.Tensor:
        """Normalise each channel, the second dimension."""
        result, mean, deviation = torch.native_batch_norm(
            values, weight, bias, running_mean, running_var, _TRAINING, momentum, eps
        )
        shape = [1, -1] + [1] * (values.dim() - 2)
        deviation = deviation.view(shape)
        scale = deviation.float()  # products in bf16 would lose what is left of two large ones
        normalised = (values * scale).sub_(mean.view(shape) * scale).to(values.dtype)
        ctx.save_for_backward(normalised, deviation.flatten(), weight)
        ctx.eps = eps
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradients of values, weight and bias."""
        refuse_second_derivative()
        normalised, deviation, weight = ctx.saved_tensors
        needed = [ctx.needs_input_grad[0], ctx.needs_input_grad[3], ctx.needs_input_grad[4]]
        scale = deviation if weight is None else weight * deviation
        of_values, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, normalised, scale, None, None, torch.zeros_like(deviation),
            torch.ones_like(deviation), _TRAINING, ctx.eps, needed,
        )  # fmt: skip
        return of_values, None, None, of_weight, of_bias, None, None


class GroupNorm(torch.autograd.Function):
    """`group_norm`, and `instance_norm`, whose groups are channels; keeps what it normalised to."""

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
        result = call(values, weight=weight, bias=bias)  # in the format that autocast says
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
        # Autograd casts them to the formats of values, weight and bias.
        return of_values, of_weight, of_bias, None, None, None


class RMSNorm(torch.autograd.Function):
    """`rms_norm`; keeps what the layer normalised to."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        shape: list[int],
        weight: torch.Tensor | None,
        eps: float | None,
    ) -> torch.Tensor:
        """Divide by the root of the mean square over the last dimensions, those of `shape`."""
        result = rms_norm(values, shape, weight, eps)
        ctx.dimensions = list(range(-len(shape), 0))
        given = values.float()
        smallest = torch.finfo(given.dtype).eps if eps is None else eps  # as torch computes halves
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
