"""What fits into a GPU's memory.

A trace counts the bytes of live storages as CUDA's allocator rounds them. A process needs more: the
CUDA context with its kernels, workspaces of cuDNN and cuBLAS, and pieces between blocks that fit
nothing. Both figures below were chosen on the families of models that the cost model's constants
are fitted to (`benchmarks/fit_costs.py`), from the largest batches that ran on a card of 24 GB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.advise.gpus import GIB

if TYPE_CHECKING:
    from halfstep.advise.gpus import Gpu
    from halfstep.advise.trace import Trace

CONTEXT = GIB
"""Bytes of a process beside its tensors: context, kernels, workspaces."""

PIECES = 1.04
"""What the allocator keeps for each byte of tensors."""

USABLE = 0.9875
"""Share of a card's memory that a driver hands out: 23.7 of 24 GiB."""


def needed(trace: Trace) -> int:
    """Return the bytes that a process takes at the peak of a step."""
    return round(trace.peak * PIECES) + CONTEXT


def usable(gpu: Gpu) -> int:
    """Return the bytes that a process can have."""
    return round(gpu.bytes * USABLE)


def largest_batch(small: Trace, large: Trace, limit: int) -> int:
    """Return about how many samples fit, from the peaks of two batches; 0 where not even one does.

    Args:
        small: A step of fewer samples.
        large: The same step of more.
        limit: Bytes that a process may take.
    """
    each = (needed(large) - needed(small)) / (large.batch - small.batch)
    if each <= 0:
        return large.batch if needed(large) <= limit else 0
    fixed = needed(small) - each * small.batch
    return max(0, int((limit - fixed) / each))
