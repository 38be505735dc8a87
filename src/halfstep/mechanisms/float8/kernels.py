"""Products of FP8 values: quantised with one scale per tensor, multiplied and summed in fp32.

The factors of a product are the values that an FP8 tensor core would read. They are saved for the
backward in FP8, and widened only for the multiplication. Activations and weights are in E4M3.
Gradients are in E5M2, because their range is wider (Micikevicius et al., arXiv:2209.05433, section
4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from halfstep.formats import FORMATS, torch_dtype
from halfstep.kernels.observed import computing_in

if TYPE_CHECKING:
    from collections.abc import Sequence

Role = Literal["input", "weight", "gradient"]

FORMAT_OF: dict[Role, str] = {
    "input": "fp8-e4m3",
    "weight": "fp8-e4m3",
    "gradient": "fp8-e5m2",
}


NAME_OF_BACKWARD = "_Float8ProductBackward"
"""The name of the autograd node of such a product."""


class Scales(Protocol):
    """Determines the scales of the tensors of one layer."""

    def largest(self, role: Role, value: torch.Tensor, *, training: bool) -> torch.Tensor:
        """Return the magnitude that becomes the largest FP8 number after scaling.

        With dynamic scaling, it is the largest magnitude of `value`.
        """


@dataclass(frozen=True, slots=True)
class Quantised:
    """A tensor in FP8.

    Attributes:
        values: The scaled values, in FP8.
        scale: fp32 scalar by which the tensor was multiplied.
    """

    values: torch.Tensor
    scale: torch.Tensor

    def widened(self) -> torch.Tensor:
        """Return the values in fp32, still scaled."""
        return self.values.float()


def quantised(
    value: torch.Tensor, role: Role, scales: Scales, *, training: bool = True
) -> Quantised:
    """Scale and round a tensor; values beyond the format's range saturate, as in hardware.

    A tensor of zeros has the scale 1. A tensor with an inf has the scale 0 if its own largest value
    determines the scale, so that the inf becomes NaN. Under delayed scaling, the inf saturates like
    any large value.
    """
    format_ = FORMATS[FORMAT_OF[role]]
    largest = scales.largest(role, value, training=training).float()
    # torch computes `format_.max / largest` as a reciprocal times a number, and so rounds twice.
    scale = torch.where(largest > 0, torch.full_like(largest, format_.max) / largest, 1.0)
    # For a very small `largest`, the quotient overflows; fp32's maximum is good enough as a scale.
    scale = torch.where(largest.isfinite(), scale.clamp(max=FORMATS["fp32"].max), scale)
    # Clamped before the cast, because the overflow of a cast differs between versions of torch.
    scaled = (value.detach().float() * scale).clamp_(-format_.max, format_.max)
    return Quantised(scaled.to(torch_dtype(format_.name)), scale)


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


def float8_product(
    value: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scales: Scales,
    geometry: Geometry | None = None,
) -> torch.Tensor:
    """Compute a linear layer or a convolution in FP8, differentiably.

    Args:
        value: The layer's input, (..., features) or (N, channels, *size).
        weight: The layer's weight, with the shape that `torch.nn.functional` expects.
        bias: The layer's bias, which is added in fp32 and is not quantised.
        scales: The scales of this layer.
        geometry: The geometry of the convolution; None for a linear layer.

    Returns:
        The output, rounded once from fp32 to `value`'s dtype.
    """
    # Read here, because inside `forward` gradients are always disabled.
    training = torch.is_grad_enabled()
    result: torch.Tensor = _Float8Product.apply(value, weight, bias, scales, geometry, training)
    return result


class _Float8Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        value: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        scales: Scales,
        geometry: Geometry | None,
        training: bool,
    ) -> torch.Tensor:
        left = quantised(value, "input", scales, training=training)
        right = quantised(weight, "weight", scales, training=training)
        ctx.save_for_backward(left.values, left.scale, right.values, right.scale)
        ctx.scales, ctx.geometry = scales, geometry
        ctx.dtypes = value.dtype, weight.dtype, None if bias is None else bias.dtype
        with computing_in(FORMAT_OF["input"]):
            if geometry is None:
                result = _matmul(left.widened(), right.widened().t())
            else:
                wide = left.widened(), right.widened(), None
                result = torch.ops.aten.convolution(*wide, *geometry.arguments())
        # Two divisions, because the product of two large scales would overflow.
        result = result / left.scale / right.scale
        if bias is not None:
            shape = (-1,) if geometry is None else (-1, *[1] * len(geometry.stride))
            result += bias.float().view(shape)
        return result.to(value.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = gradients
        left_values, left_scale, right_values, right_scale = ctx.saved_tensors
        left, right = Quantised(left_values, left_scale), Quantised(right_values, right_scale)
        value_dtype, weight_dtype, bias_dtype = ctx.dtypes
        wanted = ctx.needs_input_grad
        by_value = by_weight = by_bias = None
        if wanted[0] or wanted[1]:
            incoming = quantised(gradient, "gradient", ctx.scales)
            with computing_in(FORMAT_OF["gradient"]):
                by_value, by_weight = _gradients(incoming, left, right, ctx.geometry, wanted[:2])
            if by_value is not None:
                by_value = _once((by_value / incoming.scale / right.scale).to(value_dtype))
            if by_weight is not None:
                by_weight = _once((by_weight / incoming.scale / left.scale).to(weight_dtype))
        if bias_dtype is not None and wanted[2]:
            channel = gradient.dim() - 1 if ctx.geometry is None else 1
            others = [axis for axis in range(gradient.dim()) if axis != channel]
            total = gradient.float().sum(others) if others else gradient.float()
            by_bias = total.to(bias_dtype)
        return by_value, by_weight, by_bias, None, None, None


def _once(gradient: torch.Tensor) -> torch.Tensor:
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
            "the gradients of FP8 products cannot be differentiated again, as a gradient penalty "
            "(create_graph=True) needs it; write recipe='bf16'"
        )


def _gradients(
    incoming: Quantised,
    left: Quantised,
    right: Quantised,
    geometry: Geometry | None,
    wanted: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients of input and weight, still multiplied by the scales of their factors."""
    gradient, value, weight = (each.widened() for each in (incoming, left, right))
    if geometry is not None:
        by_value, by_weight, _ = torch.ops.aten.convolution_backward(
            gradient, value, weight, None, *geometry.arguments(), [*wanted, False]
        )
        return by_value, by_weight
    by_value = _matmul(gradient, weight) if wanted[0] else None
    rows, columns = gradient.reshape(-1, gradient.shape[-1]), value.reshape(-1, value.shape[-1])
    return by_value, _matmul(rows.t(), columns) if wanted[1] else None


def _matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply with the ATen operator, because Apex's O1 casts `@` to fp16 in the whole process."""
    result: torch.Tensor = torch.ops.aten.matmul(left, right)
    return result
