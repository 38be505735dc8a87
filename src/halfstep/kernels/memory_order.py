"""Dense tensors of any layout as a range of memory, for elementwise kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether the elements fill a range of memory without gaps or overlap, in any layout."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a one-dimensional view of a dense tensor, `[elements]`, in the order of its memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())
