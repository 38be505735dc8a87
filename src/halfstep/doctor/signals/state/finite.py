"""Checks whether gradients are finite, by a sample of their elements that finds the usual errors.

Of a large gradient, the sample is one row and one column, which differ from step to step. The
gradient of a weight is a sum over the batch: the gradient of the layer's output times the layer's
input. So one inf or NaN in the gradient of the output makes a whole row of the weight's gradient
non-finite, and one inf or NaN in the input makes a whole column non-finite. The sampled column has
an element of each row, and the sampled row has an element of each column. Small gradients, such as
those of biases and norms, are checked completely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.doctor.internals import values_of_sparse
from halfstep.doctor.tensors.local import local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SMALL = 4096
STRIDE = 64


def sample_is_finite(gradients: Iterable[torch.Tensor], number: int) -> bool:
    """Return whether all elements in a sample of gradients are finite; waits for the device.

    Args:
        gradients: Gradients of any shapes and formats; of sharded gradients, only the local shard
            is checked.
        number: Number of the step; selects the sampled row and column.
    """
    parts = [part.reshape(-1) for each in gradients for part in _sample(each, number)]
    by_format: dict[torch.dtype, list[torch.Tensor]] = {}
    for part in parts:
        by_format.setdefault(part.dtype, []).append(part)
    for alike in by_format.values():
        sample = torch.cat(alike)
        total = sample.sum(dtype=torch.float32)  # a tenth of the cost of isfinite
        if not (bool(total.isfinite()) or bool(sample.isfinite().all())):
            return False
    return True


def _sample(gradient: torch.Tensor, number: int) -> Iterator[torch.Tensor]:
    if gradient.is_sparse:
        gradient = values_of_sparse(gradient)
    gradient = local(gradient)
    if gradient.numel() <= SMALL:
        yield gradient
    elif gradient.dim() == 1:
        # Possibly several flattened weights. Each row of at least `STRIDE` elements has a sample.
        yield gradient[number % STRIDE :: STRIDE]
    else:
        yield gradient.select(0, number % len(gradient))
        column = gradient
        for size in gradient.shape[1:]:
            column = column.select(1, number % size)
        yield column
