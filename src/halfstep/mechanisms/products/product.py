"""Emulated products of quantised tensors, with their gradients.

The factors are the values that a tensor core would read, widened for a multiplication and a sum in
fp32. A native product (`native.py`) gives the same numbers, up to the order of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from halfstep.kernels.observed import Product, computing_in
from halfstep.mechanisms.products.quantised import Quantised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.mechanisms.products.quantised import Axis, Quantiser, Role


@dataclass(frozen=True, slots=True)
class Geometry:
    """The geometry of a convolution; None in its place means a matrix product."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments of `aten::convolution` after the bias."""
        zeros = [0] * len(self.stride)
        return self.stride, self.padding, self.dilation, False, zeros, self.groups


def product(
    value: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    quantiser: Quantiser,
    geometry: Geometry | None = None,
) -> torch.Tensor:
    """Compute a linear layer or a convolution of quantised tensors, differentiably once.

    Args:
        value: The layer's input, (..., features) or (N, channels, *size).
        weight: The layer's weight, with the shape that `torch.nn.functional` expects.
        bias: The layer's bias, which is added in fp32 and is not quantised.
        quantiser: Quantises the tensors of this layer.
        geometry: The geometry of the convolution; None for a linear layer.

    Returns:
        The output, rounded once from fp32 to `value`'s dtype.
    """
    # Read here, because inside `forward` gradients are always disabled.
    training = torch.is_grad_enabled()
    result: torch.Tensor = _Product.apply(value, weight, bias, quantiser, geometry, training)
    return result


class _Product(Product):
    @staticmethod
    def forward(
        ctx: Any,
        value: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        quantiser: Quantiser,
        geometry: Geometry | None,
        training: bool,
    ) -> torch.Tensor:
        features = value.dim() - 1 if geometry is None else 1
        left = quantiser.quantised(value, "input", (features,), training=training)
        right = quantiser.quantised(weight, "weight", (1,), training=training)
        # Saved quantised, unless the backward needs the tensor quantised along another axis.
        kept_left = (value,) if quantiser.depends_on_axis("input") else tuple(left)
        kept_right = (weight,) if quantiser.depends_on_axis("weight") else tuple(right)
        ctx.save_for_backward(*kept_left, *kept_right)
        ctx.split = len(kept_left)
        ctx.quantiser, ctx.geometry = quantiser, geometry
        ctx.dtypes = value.dtype, weight.dtype, None if bias is None else bias.dtype
        with computing_in(quantiser.format_of("input")):
            if geometry is not None:
                wide = left.widened(), right.widened(), None
                result = torch.ops.aten.convolution(*wide, *geometry.arguments())
            else:
                result = _matmul(left.widened(), right.widened().t())
        # Two divisions, because the product of two large scales would overflow.
        result = result / left.scale / right.scale
        if bias is not None:
            shape = (-1,) if geometry is None else (-1, *[1] * len(geometry.stride))
            result += bias.float().view(shape)
        rounded: torch.Tensor = result.to(value.dtype)
        return rounded

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = gradients
        value_dtype, weight_dtype, bias_dtype = ctx.dtypes
        wanted = ctx.needs_input_grad
        channel = gradient.dim() - 1 if ctx.geometry is None else 1
        samples = tuple(axis for axis in range(gradient.dim()) if axis != channel)
        by_value = by_weight = by_bias = None
        if wanted[0] or wanted[1]:
            with computing_in(ctx.quantiser.format_of("gradient")):
                by_value, by_weight = _gradients(ctx, gradient, channel, samples)
            if by_value is not None:
                by_value = differentiable_once(by_value.to(value_dtype))
            if by_weight is not None:
                by_weight = differentiable_once(by_weight.to(weight_dtype))
        if bias_dtype is not None and wanted[2]:
            total = gradient.float().sum(samples) if samples else gradient.float()
            by_bias = total.to(bias_dtype)
        return by_value, by_weight, by_bias, None, None, None


def _gradients(
    ctx: Any, gradient: torch.Tensor, channel: int, samples: Axis
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of input and weight that are wanted, in fp32."""
    quantiser: Quantiser = ctx.quantiser
    kept = ctx.saved_tensors  # once, because checkpointing allows one read
    kept_value, kept_weight = kept[: ctx.split], kept[ctx.split :]
    for_value, for_weight = ctx.needs_input_grad[:2]
    multiply = _linear_gradients if ctx.geometry is None else _convolution_gradients
    once = not quantiser.depends_on_axis("gradient")
    by_value = by_weight = None
    if for_value or once:
        incoming = quantiser.quantised(gradient, "gradient", (channel,))
        together = once and for_weight
        value = _operand(quantiser, kept_value, "input", samples if together else None)
        weight = _operand(quantiser, kept_weight, "weight", (0,) if for_value else None)
        by_value, by_weight = multiply(ctx, incoming, value, weight, (for_value, together))
    if for_weight and not once:
        incoming = quantiser.quantised(gradient, "gradient", samples)
        value = _operand(quantiser, kept_value, "input", samples)
        weight = _operand(quantiser, kept_weight, "weight", None)
        _, by_weight = multiply(ctx, incoming, value, weight, (False, True))
    return by_value, by_weight


def _operand(quantiser: Quantiser, kept: Sequence[Any], role: Role, axis: Axis | None) -> Quantised:
    """Return a saved operand, quantised along `axis`; without an axis, only its shape counts."""
    if not quantiser.depends_on_axis(role):
        return Quantised(*kept)
    if axis is None:
        return Quantised(kept[0], kept[0].new_ones((), dtype=torch.float32))
    return quantiser.quantised(kept[0], role, axis, training=False)


def _linear_gradients(
    _: Any, incoming: Quantised, value: Quantised, weight: Quantised, wanted: tuple[bool, bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    by_value = by_weight = None
    gradient = incoming.widened()
    if wanted[0]:
        by_value = _matmul(gradient, weight.widened())
    if wanted[1]:
        wide = value.widened()
        rows_of, columns = (each.reshape(-1, each.shape[-1]) for each in (gradient, wide))
        by_weight = _matmul(rows_of.t(), columns)
    return _unscaled(by_value, incoming, weight), _unscaled(by_weight, incoming, value)


def _convolution_gradients(
    ctx: Any, incoming: Quantised, value: Quantised, weight: Quantised, wanted: tuple[bool, bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    by_value, by_weight, _ = torch.ops.aten.convolution_backward(
        incoming.widened(),
        value.widened(),
        weight.widened(),
        None,
        *ctx.geometry.arguments(),
        [*wanted, False],
    )
    return _unscaled(by_value, incoming, weight), _unscaled(by_weight, incoming, value)


def _unscaled(
    result: torch.Tensor | None, left: Quantised, right: Quantised
) -> torch.Tensor | None:
    return None if result is None else result / left.scale / right.scale


def differentiable_once(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient that cannot be differentiated again: quantised factors have no graph."""
    if not torch.is_grad_enabled():  # without create_graph
        return gradient
    result: torch.Tensor = _Once.apply(gradient.detach().requires_grad_())
    return result


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        del ctx
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> torch.Tensor:
        del ctx
        raise RuntimeError(
            "the gradients of quantised products cannot be differentiated again, as a gradient "
            "penalty (create_graph=True) needs it; write recipe='bf16'"
        )


def _matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply with the ATen operator, because Apex's O1 casts `@` to fp16 in the whole process."""
    result: torch.Tensor = torch.ops.aten.matmul(left, right)
    return result
