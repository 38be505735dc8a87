"""Predicts whether a step fits into the memory of a GPU.

A trace counts the bytes of live storages, rounded as by CUDA's allocator. A process needs more
memory: for the CUDA context with its kernels, for the workspaces of cuDNN and cuBLAS, and for
fragments between blocks. The values of `CONTEXT` and `PIECES` were chosen on the families of models
that the cost model is fitted to (`benchmarks/fit_costs.py`), from the largest batches that ran on a
card with 24 GB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.advise.predict.gpus import GIB

if TYPE_CHECKING:
    from halfstep.advise.predict.gpus import Gpu
    from halfstep.advise.predict.trace import Trace

CONTEXT = GIB
"""Bytes of a process besides its tensors: CUDA context, kernels, workspaces."""

PIECES = 1.04
"""Bytes that the allocator reserves per byte of tensors, because of fragmentation."""

USABLE = 0.9875
"""Share of a card's memory that the driver makes available: 23.7 of 24 GiB."""


def needed(trace: Trace) -> int:
    """Return the bytes that a process uses at the peak of a step."""
    return round(trace.peak * PIECES) + CONTEXT


def usable(gpu: Gpu) -> int:
    """Return the bytes that a process can use on a GPU."""
    return round(gpu.bytes * USABLE)


def largest_batch(small: Trace, large: Trace, limit: int) -> int:
    """Estimate the largest batch that fits, linearly from two batch sizes; 0 if no sample fits.

    Args:
        small: A step with fewer samples.
        large: The same step with more samples.
        limit: Bytes that the process may use.
    """
    each = (needed(large) - needed(small)) / (large.batch - small.batch)
    if each <= 0:
        return large.batch if needed(large) <= limit else 0
    fixed = needed(small) - each * small.batch
    return max(0, int((limit - fixed) / each))
