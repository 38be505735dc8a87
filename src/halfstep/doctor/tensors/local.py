"""What this process has of a tensor that several hold.

Whatever doctor computes, it computes on that: an operator on the whole would wait for the other
processes, which do not look at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    import torch


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's part that lies in this process; a plain tensor as it is."""
    if not isinstance(tensor, DTensor):
        return tensor
    part: torch.Tensor = tensor.to_local()
    return part
