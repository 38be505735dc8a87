"""The part of a sharded tensor that is in this process.

doctor computes only on this part: an operator on the whole tensor would wait for the other
processes, which do not run doctor's operators at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    import torch


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor in this process; a plain tensor unchanged."""
    if not isinstance(tensor, DTensor):
        return tensor
    part: torch.Tensor = tensor.to_local()
    return part
