"""The inputs of a recorded step: memory that a replay reads, and what must stay the same."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten


def signature_of(batch: Any) -> tuple[Any, ...]:
    """Return what a batch must have in common with a recorded one, to be replayed.

    These are its structure, the shapes, strides, formats and devices of its tensors, and all else
    in it.
    """
    leaves, structure = tree_flatten(batch)
    parts = [
        (each.shape, each.stride(), each.dtype, each.device, each.requires_grad)
        if isinstance(each, torch.Tensor)
        else each
        for each in leaves
    ]
    return (structure, *parts)


class Inputs:
    """Copies of the tensors of a batch, in memory that stays.

    Args:
        batch: Any structure of tuples, lists and mappings. What is no tensor is kept as it is.

    Attributes:
        batch: The same structure with the copies.
    """

    def __init__(self, batch: Any) -> None:
        leaves, structure = tree_flatten(batch)
        copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in leaves]
        self._tensors = [each for each in copies if isinstance(each, torch.Tensor)]
        self.batch = tree_unflatten(copies, structure)

    def write(self, batch: Any) -> None:
        """Overwrite the copies with the tensors of a batch of the same signature."""
        given = [each for each in tree_flatten(batch)[0] if isinstance(each, torch.Tensor)]
        with torch.no_grad():
            for own, new in zip(self._tensors, given, strict=True):
                own.copy_(new, non_blocking=True)
