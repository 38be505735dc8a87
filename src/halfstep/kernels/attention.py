"""Fused attention for half tensors on a CPU, through the fp32 kernel.

The scores and their softmax stay in fp32 inside; what leaves is rounded once. The row sums that
the backward needs (logsumexp) are fp32 for half inputs natively, and stay so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfstep.kernels.widen import wide, wide_values

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from halfstep.kernels.registration import Kernel
    from halfstep.kernels.widen import Chooses


def attention(chosen: Chooses) -> dict[str, Kernel]:
    """Return the forward and backward kernels of `scaled_dot_product_attention`, by name."""

    def forward(
        original: Callable[..., Any], query: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if not _computes(chosen, query, *args[:2]):
            return original(query, *args, **kwargs)
        output, logsumexp = original(*wide((query, *args)), **wide_values(kwargs))
        return output.to(query.dtype), logsumexp

    def backward(
        original: Callable[..., Any], grad: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if not _computes(chosen, grad, *args[:4]):
            return original(grad, *args, **kwargs)
        grads = original(*wide((grad, *args)), **wide_values(kwargs))
        return tuple(each.to(grad.dtype) for each in grads)

    name = "_scaled_dot_product_flash_attention_for_cpu"
    return {name: forward, f"{name}_backward": backward}


def _computes(chosen: Chooses, first: torch.Tensor, *others: torch.Tensor) -> bool:
    return chosen(first.dtype) and all(other.dtype == first.dtype for other in others)
