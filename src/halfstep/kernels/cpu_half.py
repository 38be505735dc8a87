"""Half precision on a CPU at fp32 speed, in real fp16 and bf16 tensors.

On a processor without half-precision units, PyTorch computes convolutions and matrix products of
half tensors in slow loops. On a processor with such units, fp16 convolutions still have no fast
backward, and oneDNN's bf16 convolutions return uninitialised memory for some small strided shapes
(torch 2.14.1; `benchmarks/native_half.py` times and counts them). So `cpu_half` replaces these
operators on every CPU: it widens the inputs, calls the fp32 kernel and rounds the result once.
Autograd, checkpointing and threads work unchanged.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from halfstep.formats.dtypes import HALVES
from halfstep.kernels.native.memory import freed_memory_kept
from halfstep.kernels.pooling import fast_half_pooling
from halfstep.kernels.products import ON
from halfstep.kernels.scratch import scratch, wide_copies
from halfstep.kernels.widen import Widened

if TYPE_CHECKING:
    from collections.abc import Iterator

_WIDENED = Widened()
_lock = threading.RLock()
_contexts = 0


@contextmanager
def cpu_half() -> Iterator[None]:
    """Compute fp16 and bf16 on the CPU with fp32 kernels, which are faster.

    This replaces convolutions, matrix products and attention: inputs are converted to fp32, and
    each result is rounded once. It applies to all threads of the process until the last such
    context ends. Other dtypes and devices are not affected.
    """
    global _contexts  # noqa: PLW0603  # counted for the process, as the kernels are
    with _lock:
        _contexts += 1
    try:
        products = ON["cpu"].computed(dict.fromkeys(HALVES, _WIDENED))
        with freed_memory_kept(), fast_half_pooling(), products:
            yield
    finally:
        with _lock:
            _contexts -= 1
            if not _contexts:
                scratch.clear()
                wide_copies.clear()


def in_use() -> bool:
    """Tell whether a `cpu_half` context is open in this process."""
    return _contexts > 0
