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


def in_order_of(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor with the strides of another dense one, copied if it has others."""
    if tensor.stride() == stride and is_dense(tensor):
        return tensor
    copy = tensor.new_empty_strided(tensor.size(), stride)
    return copy.copy_(tensor)
