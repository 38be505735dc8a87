"""Quantises tensors to FP8 with one scale per tensor, or one per row.

With one scale per tensor, activations and weights are in E4M3, and gradients in E5M2, because
their range is wider (Micikevicius et al., arXiv:2209.05433, section 4). With one scale per row, all
are in E4M3, because a row has a narrower range than its tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.formats import FORMATS, torch_dtype
from halfstep.mechanisms.products.quantised import Quantised

if TYPE_CHECKING:
    from halfstep.formats import Format
    from halfstep.mechanisms.float8.scales import Scales
    from halfstep.mechanisms.products.quantised import Axis, Role

FORMAT_OF: dict[Role, str] = {
    "input": "fp8-e4m3",
    "weight": "fp8-e4m3",
    "gradient": "fp8-e5m2",
}
"""The formats with one scale per tensor."""

FORMAT_OF_ROWS = "fp8-e4m3"


def scale_of(largest: torch.Tensor, format_: Format) -> torch.Tensor:
    """Return the scale that makes a magnitude the largest number of a format.

    Args:
        largest: Largest magnitudes, in fp32, of any shape. Zeros have the scale 1, an inf has the
            scale 0, so that it becomes NaN.
        format_: The format.
    """
    # torch computes `format_.max / largest` as a reciprocal times a number: two roundings.
    scale = torch.where(largest > 0, torch.full_like(largest, format_.max) / largest, 1.0)
    # For a very small `largest`, the quotient overflows; fp32's maximum is good enough.
    return torch.where(largest.isfinite(), scale.clamp(max=FORMATS["fp32"].max), scale)


def rounded(value: torch.Tensor, scale: torch.Tensor, format_: Format) -> torch.Tensor:
    """Scale and round a tensor; values beyond the format's range saturate, as in hardware.

    Args:
        value: The tensor.
        scale: Its scale, or its scales, which broadcast to it.
        format_: The format.
    """
    # Clamped before the cast, because the overflow of a cast differs between versions of torch.
    scaled = (value.detach().float() * scale).clamp(-format_.max, format_.max)
    return scaled.to(torch_dtype(format_.name))


class Float8:
    """A `Quantiser`: the values are the same along every axis.

    Args:
        scales: The scales of the layer's tensors.
    """

    def __init__(self, scales: Scales) -> None:
        self.scales = scales

    def depends_on_axis(self, role: Role) -> bool:
        """Return False: a tensor has one scale."""
        del role
        return False

    def format_of(self, role: Role) -> str:
        """Return E5M2 for gradients, else E4M3."""
        return FORMAT_OF[role]

    def quantised(
        self, value: torch.Tensor, role: Role, axis: Axis, *, training: bool = True
    ) -> Quantised:
        """Scale and round a tensor.

        A tensor of zeros has the scale 1. A tensor with an inf has the scale 0 if its own largest
        value determines the scale, so that the inf becomes NaN. Under delayed scaling, the inf
        saturates like any large value.
        """
        del axis
        format_ = FORMATS[FORMAT_OF[role]]
        largest = self.scales.largest(role, value, training=training).float()
        scale = scale_of(largest, format_)
        return Quantised(rounded(value, scale, format_), scale)


class RowwiseFloat8:
    """A `Quantiser` with a scale for each sum of a product: dynamic scales, E4M3 in all roles."""

    def depends_on_axis(self, role: Role) -> bool:
        """Return True: the scales are those of one axis."""
        del role
        return True

    def format_of(self, role: Role) -> str:
        """Return E4M3, in all roles."""
        del role
        return FORMAT_OF_ROWS

    def quantised(
        self, value: torch.Tensor, role: Role, axis: Axis, *, training: bool = True
    ) -> Quantised:
        """Scale each row along `axis` by its own largest value, and round."""
        del role, training
        format_ = FORMATS[FORMAT_OF_ROWS]
        magnitudes = value.detach().abs()
        largest = (
            magnitudes.amax(axis, keepdim=True)
            if value.numel()
            else magnitudes.sum(axis, keepdim=True)
        )
        scale = scale_of(largest.float(), format_)
        return Quantised(rounded(value, scale, format_), scale.new_ones(()), 1 / scale)
