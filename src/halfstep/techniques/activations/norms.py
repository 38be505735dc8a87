"""Norm layers that keep what they normalised to, in place of what came in.

The gradient needs the input with its mean and deviation taken out. Rounded as it came in, a row or
channel of small deviation would be lost beside a larger one in its group, and the error divided by
that deviation; normalised, all of them are of one size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import layer_norm

from halfstep.techniques.activations.store import refuse_second_derivative

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
