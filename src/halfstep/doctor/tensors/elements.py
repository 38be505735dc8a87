"""A few elements of a tensor, which stand for all of them where values are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.tensors.local import local

if TYPE_CHECKING:
    import torch


def some(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return at most `count` elements, evenly spread, as a view where the memory allows one.

    Args:
        tensor: A tensor of any shape; of a sharded one, the local shard is used.
        count: The number of elements.
    """
    flat = local(tensor).detach().flatten()
    return flat[:: max(1, flat.numel() // count)][:count]
