"""A few elements of a tensor, which stand for all of them where values are compared."""

from __future__ import annotations

import torch

from halfstep.doctor.tensors.local import local


def some(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return at most `count` elements, evenly spread, as a view where the memory allows one.

    Args:
        tensor: A tensor of any shape; of a sharded one, the local shard is used.
        count: The number of elements.
    """
    flat = local(tensor).detach().flatten()
    return flat[:: max(1, flat.numel() // count)][:count]


def content(tensor: torch.Tensor) -> bytes:
    """Return the memory of all elements, to compare them: NumPy has no bf16."""
    return tensor.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes()
