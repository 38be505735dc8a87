"""What one process holds of a tensor that several share (FSDP2), as the engine sees it.

Unscaling, clipping and averaging go element by element, so they work on the part at hand; only what
is summed over a whole tensor needs the other processes (`measure.py`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import torch
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is a DTensor, without the price of importing what defines it."""
    return hasattr(tensor, "to_local")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this process holds: the same memory, no gradients."""
    return cast("DTensor", tensor.detach()).to_local() if is_sharded(tensor) else tensor


def as_part_of(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return `part`, which this process holds, as a tensor that is shared as `whole` is."""
    if not is_sharded(whole):
        return part
    from torch.distributed.tensor import DTensor

    like = cast("DTensor", whole)
    return DTensor.from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def copies(tensor: torch.Tensor, processes: int) -> int:
    """Return how many of the `processes` hold each element of a tensor."""
    if not is_sharded(tensor):
        return processes
    shared = cast("DTensor", tensor)
    sizes = [
        shared.device_mesh.size(dim)
        for dim, placement in enumerate(shared.placements)
        if placement.is_shard()
    ]
    return processes // math.prod(sizes)
