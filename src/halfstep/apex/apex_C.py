"""`apex_C`: flattens several tensors into one and splits it again, with torch's functions."""  # noqa: N999  (Apex's name)

from __future__ import annotations

from typing import TYPE_CHECKING

from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["flatten", "unflatten"]


def flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate tensors of one format; return a tensor of shape [number of elements of all]."""
    flat: torch.Tensor = _flatten_dense_tensors(tuple(tensors))
    return flat


def unflatten(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return views of `flat` in the shapes of `tensors`."""
    return tuple(_unflatten_dense_tensors(flat, tuple(tensors)))
