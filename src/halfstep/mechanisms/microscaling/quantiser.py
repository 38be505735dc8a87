"""Quantises tensors to MXFP8 and MXFP4: blocks of 32 elements along the axis of the product.

The scale of a block is a power of two (E8M0). It is the smallest one with which the largest element
of the block does not exceed the range of the element format, as cuBLAS computes it and NVIDIA
recommends for training (Mishra et al., arXiv:2506.08027, section 3.1). The specification's own rule
would let the largest elements saturate (OCP Microscaling Formats v1.0, section 6.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from halfstep.formats import FORMATS, round_to, torch_dtype
from halfstep.mechanisms.products.blocks import Blocks
from halfstep.mechanisms.products.quantised import Quantised

if TYPE_CHECKING:
    from halfstep.mechanisms.products.quantised import Axis, Role

SIZE = 32
"""The number of elements in a block."""

Elements = Literal["fp8", "fp4"]

FORMAT_OF: dict[Elements, str] = {"fp8": "fp8-e4m3", "fp4": "fp4-e2m1"}

_BIAS = 127


class MxBlocks(NamedTuple):
    """Quantised blocks, with the shape of `Blocks.values`.

    Attributes:
        elements: The elements, as fp32 numbers that the element format represents.
        exponents: int32, the exponents of the blocks' scales, between -127 and 127; 128 is NaN.
    """

    elements: torch.Tensor
    exponents: torch.Tensor

    def widened(self) -> torch.Tensor:
        """Return the elements times their scales, in fp32."""
        scales = torch.ldexp(torch.ones_like(self.exponents, dtype=torch.float32), self.exponents)
        return self.elements * torch.where(self.exponents > _BIAS, torch.nan, scales)


def quantised_blocks(blocks: Blocks, elements: Elements) -> MxBlocks:
    """Scale and round the blocks of a tensor; a block with inf or NaN becomes NaN or saturates."""
    format_ = FORMATS[FORMAT_OF[elements]]
    ratio = blocks.largest() / format_.max
    mantissa, exponents = torch.frexp(ratio)
    # frexp's mantissa is between 0.5 and 1, so a power of two is 0.5 times the next one.
    exponents = torch.where(mantissa == 0.5, exponents - 1, exponents)
    exponents = torch.where(ratio.isinf(), _BIAS, exponents).clamp(-_BIAS, _BIAS)
    # A block of zeros has the smallest scale, and stays zero whatever the scale is.
    exponents = torch.where(ratio == 0, -_BIAS, exponents).to(torch.int32)
    exponents = torch.where(ratio.isnan(), _BIAS + 1, exponents)
    scaled = torch.ldexp(blocks.values, -exponents).clamp(-format_.max, format_.max)
    if elements == "fp8":
        rounded = scaled.to(torch_dtype(format_.name)).float()
    else:
        rounded = round_to(scaled, format_.name, overflow="saturate")
    return MxBlocks(rounded, exponents)


class Microscaling:
    """A `Quantiser` whose values depend on the axis, in all roles.

    Args:
        elements: The format of elements.
    """

    def __init__(self, elements: Elements) -> None:
        self._elements: Elements = elements

    def depends_on_axis(self, role: Role) -> bool:
        """Return True: blocks are along the axis."""
        del role
        return True

    def format_of(self, role: Role) -> str:
        """Return the name of the format, the same in all roles."""
        del role
        return f"mx{self._elements}"

    def quantised(
        self, value: torch.Tensor, role: Role, axis: Axis, *, training: bool = True
    ) -> Quantised:
        """Return a tensor's values in fp32, already multiplied by the scales of their blocks."""
        del role, training
        blocks = Blocks.of(value, axis, SIZE)
        wide = quantised_blocks(blocks, self._elements).widened()
        return Quantised(blocks.joined(wide), value.new_ones((), dtype=torch.float32))
