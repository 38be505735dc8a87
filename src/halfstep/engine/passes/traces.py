"""Finds the number formats in which a loss was computed, from its autograd graph."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from halfstep.kernels.observed import Product

_PRODUCTS = frozenset(
    {
        *("MmBackward0", "BmmBackward0", "MvBackward0", "DotBackward0", "ConvolutionBackward0"),
        *("AddmmBackward0", "BaddbmmBackward0", "AddbmmBackward0", "AddmvBackward0"),
    }
)


def other_format_of_products(loss: torch.Tensor, wanted: torch.dtype) -> torch.dtype | None:
    """Return the format of the products in the graph of `loss`, if no node there is in `wanted`.

    The function visits each node once and reads only the graph. It reads no tensor values, so the
    host does not wait, and no saved tensors, so no checkpointed activations are recomputed.

    Args:
        loss: Any tensor.
        wanted: The format in which autocast computes.

    Returns:
        The dtype of a product. None if a node is in `wanted`, if there is no product, if the
        products are fp64 (autocast leaves these unchanged), or if a product may be hidden in a
        node that cannot be inspected: compiled code, or an autograd function of the caller.
    """
    found: torch.dtype | None = None
    seen: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = node.name()
        is_product = name in _PRODUCTS
        if isinstance(node, BackwardCFunction):
            is_product = issubclass(node._forward_cls, Product)  # type: ignore[attr-defined]  # noqa: SLF001
            if not is_product:
                return None
        dtypes = [made.dtype for made in node._input_metadata]  # noqa: SLF001  # no public name
        if wanted in dtypes:
            return None
        if is_product and found is None and dtypes[0] != torch.float64:
            found = dtypes[0]
        waiting += [following for following, _ in node.next_functions]
    return found
