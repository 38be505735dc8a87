"""Half recipes on a CPU: fp32-speed kernels, and the dtypes that autocast has on a GPU.

All are settings of the process, counted, and given back when the last engine closes. Weights in
half precision cost a step more passes over memory; where the optimizer is torch's SGD, it makes up
for them with one pass in C.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from halfstep.kernels import cpu_half as kernels
from halfstep.kernels.cuda_policy import cuda_autocast_policy
from halfstep.kernels.half_gaps import half_gaps_filled
from halfstep.optim.one_pass import large_in_one_pass
from halfstep.techniques.base import Stage, Technique, device_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn
    from torch.optim import Optimizer


@contextmanager
def cpu_half() -> Iterator[None]:
    """Compute half precision on the CPU like a GPU, in a loop without an engine.

    Convolutions, matrix products and attention of fp16 and bf16 tensors use fp32 kernels, which are
    faster: inputs are converted to fp32, and each result is rounded once. `torch.autocast("cpu")`
    casts the operators that `torch.autocast("cuda")` casts. Both apply to all threads of the
    process until the last such context ends. Other dtypes and devices are not affected.

    ```python
    with halfstep.cpu_half():
        with torch.autocast("cpu", torch.float16):
            loss = criterion(model(images), labels)
        loss.backward()
    ```
    """
    with kernels.cpu_half(), half_gaps_filled(), cuda_autocast_policy():
        yield


class CpuHalf(Technique):
    """Make half precision on a CPU fast and like a GPU's; nothing where no model is on a CPU.

    Args:
        autocast: Whether the recipe computes under autocast, so that CUDA's policy matters.
    """

    stage = Stage.KERNELS

    def __init__(self, *, autocast: bool) -> None:
        self._autocast = autocast
        self._held = ExitStack()

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Take hold of the kernels, and of the policy under autocast."""
        del optimizers
        if "cpu" not in device_types(models):
            return
        self._held.enter_context(kernels.cpu_half())
        self._held.enter_context(half_gaps_filled())
        if self._autocast:
            self._held.enter_context(cuda_autocast_policy())

    def step(self, optimizer: Optimizer, take: Callable[[], None]) -> None:
        """Update large parameters in one pass over memory, with the same bits."""
        with large_in_one_pass(optimizer):
            take()

    def close(self) -> None:
        """Let go of them."""
        self._held.close()
