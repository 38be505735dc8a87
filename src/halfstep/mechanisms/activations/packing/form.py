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


class Normaliser(NamedTuple):
    """The normalisation of a tensor as it is packed: a channel's values times scale, minus shift.

    The result is rounded to the dtype of the tensor. In memory, the channels of an element are
    adjacent.

    Attributes:
        scale: fp32 `[channels]`.
        shift: fp32 `[channels]`.
        rectified: A tensor of the same size and dtype, `[elements]`, whose mask is taken too, as
            the input of a rectifier; None for no mask. The groups are then those of masks.
    """

    scale: torch.Tensor
    shift: torch.Tensor
    rectified: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor in a few bits per element. An element is `low + code * step` of its group.

    Attributes:
        stored: All of it in one piece of memory, uint8 `[groups * (group * bits / 8 + 4)]`: the
            codes of all groups, the lowest levels of all groups, and the steps of all groups.
        bits: Number of bits of a code.
        group: Number of elements in a group.
        elements: Number of elements in the tensor.
        dtype: The dtype of the tensor before it was packed.
    """

    stored: torch.Tensor
    bits: int
    group: int
    elements: int
    dtype: torch.dtype

    @property
    def groups(self) -> int:
        """The number of groups; the last one may be partly filled."""
        return -(-self.elements // self.group)

    @property
    def codes(self) -> torch.Tensor:
        """View of the index of each element's level, packed: uint8 `[groups, group * bits / 8]`."""
        return self.stored[: self._of_codes].view(self.groups, -1)

    @property
    def low(self) -> torch.Tensor:
        """View of the lowest level of each group, bf16 `[groups]`."""
        return self.stored[self._of_codes :].view(torch.bfloat16)[: self.groups]

    @property
    def step(self) -> torch.Tensor:
        """View of the distance between the levels of each group, bf16 `[groups]`."""
        return self.stored[self._of_codes :].view(torch.bfloat16)[self.groups :]

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.stored.nbytes

    def unpack(self) -> torch.Tensor:
        """Return the values, shape `[elements]`."""
        form = self.bits, self.group, self.elements, self.dtype
        unpacked: torch.Tensor = torch.ops.halfstep.unpack(self.stored, *form)
        return unpacked

    @property
    def _of_codes(self) -> int:
        return self.groups * (self.group * self.bits // 8)


def unwritten(flat: torch.Tensor, bits: int, group: int) -> Packed:
    """Return uninitialised memory for packing `flat`, shape `[elements]`, into `bits` bits."""
    elements = flat.numel()
    size = -(-elements // group) * (group * bits // 8 + 4)
    return Packed(flat.new_empty(size, dtype=torch.uint8), bits, group, elements, flat.dtype)


def unwritten_mask(values: torch.Tensor) -> torch.Tensor:
    """Return uninitialised memory for a mask of `values`, `[elements]`: uint8 `[groups, 32]`."""
    groups = -(-values.numel() // MASK_GROUP)
    return values.new_empty(groups, MASK_GROUP // 8, dtype=torch.uint8)
