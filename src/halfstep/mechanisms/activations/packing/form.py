"""The arguments and results of all packing kernels: packed tensors, and random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

MASK_GROUP = 256
"""Number of elements in a group of a mask, whose bits are stored together."""


GROUPS_A_FORWARD = 2**28
"""The random numbers of a forward pass suffice for this many groups."""


class Draw(NamedTuple):
    """The random numbers for the stochastic rounding of a tensor.

    Attributes:
        seed: Key of the generator, 64 bits.
        stream: Index of the sequence, one of 2^32 independent sequences.
        counter: Number of groups that have already drawn from the sequence in this forward pass.
        forwards: Number of the forward pass, an int64 scalar on the device of the tensor that is
            rounded. A kernel reads it, so that a replayed step draws new numbers. None for 0.
    """

    seed: int
    stream: int = 0
    counter: int = 0
    forwards: torch.Tensor | None = None

    @property
    def first(self) -> int:
        """Number of groups that have already drawn from the sequence; waits for the device."""
        before = 0 if self.forwards is None else int(self.forwards)
        return before * GROUPS_A_FORWARD + self.counter


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor in a few bits per element. An element is `low + code * step` of its group.

    Attributes:
        codes: Index of each element's level, packed: uint8 `[groups, group * bits / 8]`.
        low: Lowest level of each group, bf16 `[groups]`.
        step: Distance between the levels of each group, bf16 `[groups]`.
        bits: Number of bits of a code.
        group: Number of elements in a group.
        elements: Number of elements in the tensor.
        dtype: The dtype of the tensor before it was packed.
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
        """The codes, lowest levels and steps."""
        return self.codes, self.low, self.step

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return sum(each.nbytes for each in self.tensors)

    def unpack(self) -> torch.Tensor:
        """Return the values, shape `[elements]`."""
        form = self.bits, self.group, self.elements, self.dtype
        unpacked: torch.Tensor = torch.ops.halfstep.unpack(*self.tensors, *form)
        return unpacked


def unwritten(flat: torch.Tensor, bits: int, group: int) -> Packed:
    """Return uninitialised memory for packing `flat`, shape `[elements]`, into `bits` bits."""
    groups = -(-flat.numel() // group)
    codes = flat.new_empty(groups, group * bits // 8, dtype=torch.uint8)
    low = flat.new_empty(groups, dtype=torch.bfloat16)
    return Packed(codes, low, torch.empty_like(low), bits, group, flat.numel(), flat.dtype)


def unwritten_mask(values: torch.Tensor) -> torch.Tensor:
    """Return uninitialised memory for a mask of `values`, `[elements]`: uint8 `[groups, 32]`."""
    groups = -(-values.numel() // MASK_GROUP)
    return values.new_empty(groups, MASK_GROUP // 8, dtype=torch.uint8)
