"""What every kernel takes and returns: packed tensors, and random numbers to round by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

MASK_GROUP = 256
"""Elements whose bits of a mask lie together."""


class Draw(NamedTuple):
    """Which random numbers a tensor is rounded by.

    Attributes:
        seed: Key of the generator, 64 bits.
        stream: Which of 2^32 independent sequences they are from.
        counter: How many groups drew from the sequence before.
    """

    seed: int
    stream: int = 0
    counter: int = 0


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor of a few bits an element.

    Attributes:
        codes: uint8 `[groups, group * bits / 8]`.
        low: Lowest value of each group, bf16 `[groups]`.
        step: Distance of a group's levels, bf16 `[groups]`.
        bits: Bits of a code.
        group: Elements of a group.
        elements: Elements in all.
        dtype: What they were.
    """

    codes: torch.Tensor
    low: torch.Tensor
    step: torch.Tensor
    bits: int
    group: int
    elements: int
    dtype: torch.dtype

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What it is made of."""
        return self.codes, self.low, self.step

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return sum(each.nbytes for each in self.tensors)

    def unpack(self) -> torch.Tensor:
        """Return the values, shape `[elements]`."""
        form = self.bits, self.group, self.elements, self.dtype
        unpacked: torch.Tensor = torch.ops.halfstep.unpack(*self.tensors, *form)
        return unpacked


def unwritten(flat: torch.Tensor, bits: int, group: int) -> Packed:
    """Return memory for `flat`, shape `[elements]`, in `bits` bits an element."""
    groups = -(-flat.numel() // group)
    codes = flat.new_empty(groups, group * bits // 8, dtype=torch.uint8)
    low = flat.new_empty(groups, dtype=torch.bfloat16)
    return Packed(codes, low, torch.empty_like(low), bits, group, flat.numel(), flat.dtype)


def unwritten_mask(values: torch.Tensor) -> torch.Tensor:
    """Return memory for one bit of each of `values`, shape `[elements]`: uint8 `[groups, 32]`."""
    groups = -(-values.numel() // MASK_GROUP)
    return values.new_empty(groups, MASK_GROUP // 8, dtype=torch.uint8)
