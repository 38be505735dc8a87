"""The local part of a tensor that is sharded over processes (FSDP2).

Unscaling, clipping and averaging work element by element, so each process applies them to its local
part. Only sums over a whole tensor need the other processes (`engine/closing/agreement.py`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import torch
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is a DTensor, without the cost of importing the class."""
    return hasattr(tensor, "to_local")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the local part of a DTensor, detached, sharing its memory; else the tensor itself."""
    return cast("DTensor", tensor.detach()).to_local() if is_sharded(tensor) else tensor


def as_part_of(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return the local `part` as a DTensor like `whole`; `part` itself if `whole` is none."""
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
    """Return how many of all `processes` hold each element of a tensor."""
    if not is_sharded(tensor):
        return processes
    shared = cast("DTensor", tensor)
    sizes = [
        shared.device_mesh.size(dim)
        for dim, placement in enumerate(shared.placements)
        if placement.is_shard()
    ]
    return processes // math.prod(sizes)
