"""Quantises tensors to FP8 with one scale per tensor.

Activations and weights are in E4M3. Gradients are in E5M2, because their range is wider
(Micikevicius et al., arXiv:2209.05433, section 4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.formats import FORMATS, torch_dtype
from halfstep.mechanisms.products.quantised import Quantised

if TYPE_CHECKING:
    from halfstep.mechanisms.float8.scales import Scales
    from halfstep.mechanisms.products.quantised import Axis, Role

FORMAT_OF: dict[Role, str] = {
    "input": "fp8-e4m3",
    "weight": "fp8-e4m3",
    "gradient": "fp8-e5m2",
}


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
        """Scale and round a tensor; values beyond the format's range saturate, as in hardware.

        A tensor of zeros has the scale 1. A tensor with an inf has the scale 0 if its own largest
        value determines the scale, so that the inf becomes NaN. Under delayed scaling, the inf
        saturates like any large value.
        """
        del axis
        format_ = FORMATS[FORMAT_OF[role]]
        largest = self.scales.largest(role, value, training=training).float()
        # torch computes `format_.max / largest` as a reciprocal times a number: two roundings.
        scale = torch.where(largest > 0, torch.full_like(largest, format_.max) / largest, 1.0)
        # For a very small `largest`, the quotient overflows; fp32's maximum is good enough.
        scale = torch.where(largest.isfinite(), scale.clamp(max=FORMATS["fp32"].max), scale)
        # Clamped before the cast, because the overflow of a cast differs between versions of torch.
        scaled = (value.detach().float() * scale).clamp_(-format_.max, format_.max)
        return Quantised(scaled.to(torch_dtype(format_.name)), scale)
