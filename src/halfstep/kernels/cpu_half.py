"""Half precision on a CPU at fp32 speed, in real fp16 and bf16 tensors.

PyTorch's own convolutions and matrix products of half tensors are slow loops where a processor has
no half units. Where it has them, fp16 convolutions still have no fast backward, and oneDNN's bf16
convolutions return uninitialised memory for some small strided shapes (torch 2.14.1;
`benchmarks/native_half.py` times and counts them). `cpu_half` therefore replaces them on every
processor, for the CPU alone, by fp32 kernels around which the inputs are widened and the result is
rounded once. Autograd, checkpointing and threads need not know.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from halfstep.kernels.native.memory import freed_memory_kept
from halfstep.kernels.pooling import fast_half_pooling
from halfstep.kernels.products import ON
from halfstep.kernels.scratch import scratch, wide_copies
from halfstep.kernels.widen import Widened

if TYPE_CHECKING:
    from collections.abc import Iterator

_HALVES = (torch.float16, torch.bfloat16)
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
        products = ON["cpu"].computed(dict.fromkeys(_HALVES, _WIDENED))
        with freed_memory_kept(), fast_half_pooling(), products:
            yield
    finally:
        with _lock:
            _contexts -= 1
            if not _contexts:
                scratch.clear()
                wide_copies.clear()


def in_use() -> bool:
    """Return whether any such context is open."""
    return _contexts > 0
