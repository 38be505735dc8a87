"""Half precision on a CPU at fp32 speed, in real fp16 and bf16 tensors.

Where a processor has no half units, PyTorch's own convolutions and matrix products of half tensors
are slow loops. `cpu_half` replaces them, for the CPU alone, by fp32 kernels around which the inputs
are widened and the result is rounded once. Autograd, checkpointing and threads need not know.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from halfstep.kernels.products import ON
from halfstep.kernels.scratch import scratch
from halfstep.kernels.widen import Widened

if TYPE_CHECKING:
    from collections.abc import Iterator

_HALVES = (torch.float16, torch.bfloat16)
_WIDENED = Widened()
_lock = threading.RLock()
_contexts = 0


@contextmanager
def cpu_half(*, force: bool = False) -> Iterator[tuple[torch.dtype, ...]]:
    """Compute convolutions, matrix products and attention of half CPU tensors through fp32.

    The kernels hold for every thread of the process until the last context is left. They change
    nothing for other dtypes and devices.

    ```python
    with halfstep.cpu_half():
        with torch.autocast("cpu", torch.float16):
            loss = criterion(model(images), labels)
        loss.backward()
    ```

    Args:
        force: Replace the kernels of both half formats, of one that the processor has units for
            too, so that numbers do not depend on the machine.

    Yields:
        The dtypes whose kernels are replaced.
    """
    dtypes = tuple(dtype for dtype in _HALVES if force or not is_native(dtype))
    global _contexts  # noqa: PLW0603  # counted for the process, as the kernels are
    with _lock:
        _contexts += 1
    try:
        with ON["cpu"].computed(dict.fromkeys(dtypes, _WIDENED)):
            yield dtypes
    finally:
        with _lock:
            _contexts -= 1
            if not _contexts:
                scratch.clear()


def is_native(dtype: torch.dtype) -> bool:
    """Tell whether PyTorch has fast kernels for `dtype` on this processor."""
    supported = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,  # noqa: SLF001  # no public name
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,  # noqa: SLF001
    }
    return bool(torch.backends.mkldnn.is_available() and supported[dtype]())
