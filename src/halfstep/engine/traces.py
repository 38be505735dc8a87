"""What the graph of a loss tells of the formats that it was computed in."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from halfstep.kernels.float8 import NAME_OF_BACKWARD

_PRODUCTS = frozenset(
    {
        *("MmBackward0", "BmmBackward0", "MvBackward0", "DotBackward0", "ConvolutionBackward0"),
        *("AddmmBackward0", "BaddbmmBackward0", "AddbmmBackward0", "AddmvBackward0"),
        NAME_OF_BACKWARD,
    }
)


def other_format_of_products(loss: torch.Tensor, wanted: torch.dtype) -> torch.dtype | None:
    """Return the format of the products that made `loss`, where nothing in its graph is `wanted`.

    Nothing is read but the graph itself: no tensor, so that the host does not wait, and nothing
    that was saved, so that no checkpoint is computed again. It costs a visit of each node.

    Args:
        loss: Any tensor.
        wanted: The format that autocast computes in.

    Returns:
        None also where there is no product, where products are fp64, which autocast leaves alone,
        and where one may be inside of what cannot be looked into: code that was compiled, or an
        autograd function of the caller's own.
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
        if isinstance(node, BackwardCFunction) and name != NAME_OF_BACKWARD:
            return None
        dtypes = [made.dtype for made in node._input_metadata]  # noqa: SLF001  # no public name
        if wanted in dtypes:
            return None
        if name in _PRODUCTS and found is None and dtypes[0] != torch.float64:
            found = dtypes[0]
        waiting += [following for following, _ in node.next_functions]
    return found
