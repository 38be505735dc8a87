"""Blocks of a tensor along the axis of a product, which block formats scale one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.nn.functional import pad

if TYPE_CHECKING:
    import torch

    from halfstep.mechanisms.products.quantised import Axis


@dataclass(frozen=True, slots=True)
class Blocks:
    """A tensor whose axis is split into blocks of equal size; the last one is padded with zeros.

    Attributes:
        values: The tensor, in fp32, with dimension `dim` split into (blocks, size).
        dim: The dimension of `values` that has the elements of a block.
        shape: The shape of the tensor before the split.
        channel: The dimension that was moved behind the dimensions of a longer axis; None if the
            axis is one dimension.
    """

    values: torch.Tensor
    dim: int
    shape: torch.Size
    channel: int | None

    @classmethod
    def of(cls, value: torch.Tensor, axis: Axis, size: int) -> Blocks:
        """Split the axis of a tensor.

        Args:
            value: A tensor of any shape.
            axis: The dimensions that the product sums over: one, or all but one.
            size: The number of elements in a block.
        """
        wide, channel = value.detach().float(), None
        if len(axis) != 1:
            (channel,) = set(range(value.dim())) - set(axis)
            wide, axis = wide.movedim(channel, -1), (0,)
            wide = wide.reshape(-1, wide.shape[-1])
        (dim,) = axis
        missing = -wide.shape[dim] % size
        if missing:
            wide = pad(wide, [*[0, 0] * (wide.dim() - 1 - dim), 0, missing])
        return cls(wide.unflatten(dim, (-1, size)), dim + 1, value.shape, channel)

    def largest(self) -> torch.Tensor:
        """Return the largest magnitude of each block; dimension `dim` has the size 1."""
        return self.values.abs().amax(self.dim, keepdim=True)

    def joined(self, values: torch.Tensor) -> torch.Tensor:
        """Return values with the shape of `self.values` in the shape of the tensor."""
        flat = values.flatten(self.dim - 1, self.dim)
        if self.channel is None:
            return flat.narrow(self.dim - 1, 0, self.shape[self.dim - 1])
        rest = [size for place, size in enumerate(self.shape) if place != self.channel]
        rows = flat[: self.shape.numel() // flat.shape[1]]
        return rows.view(*rest, flat.shape[1]).movedim(-1, self.channel)
