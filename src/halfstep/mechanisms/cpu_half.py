"""Half recipes on a CPU: kernels as fast as fp32, and the dtypes of autocast on a GPU.

These are settings of the process. They are counted, and restored when the last engine closes.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from halfstep.kernels import cpu_half as kernels
from halfstep.kernels.cuda_policy import cuda_autocast_policy
from halfstep.kernels.half_gaps import half_gaps_filled
from halfstep.mechanisms.technique import Stage, Technique, device_types

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn
    from torch.optim import Optimizer


@contextmanager
def cpu_half() -> Iterator[None]:
    """Compute half precision on the CPU like a GPU, in a loop without an engine.

    Convolutions, matrix products and attention of fp16 and bf16 tensors use fp32 kernels, which are
    faster: inputs are converted to fp32, and each result is rounded once. Inside this context,
    `torch.autocast("cpu")` casts the same operators as `torch.autocast("cuda")`. The context
    applies to all threads of the process; of several contexts, the last one to end restores
    PyTorch's behaviour. Other dtypes and devices are not affected.

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
    """Makes half precision on a CPU fast and like on a GPU; has no effect without a model on a CPU.

    Args:
        autocast: Whether the recipe uses autocast. If so, autocast follows CUDA's operator lists.
    """

    stage = Stage.KERNELS

    def __init__(self, *, autocast: bool) -> None:
        self._autocast = autocast
        self._held = ExitStack()

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Register the kernels and, if the recipe uses autocast, CUDA's autocast policy."""
        del optimizers
        if "cpu" not in device_types(models):
            return
        self._held.enter_context(kernels.cpu_half())
        self._held.enter_context(half_gaps_filled())
        if self._autocast:
            self._held.enter_context(cuda_autocast_policy())

    def close(self) -> None:
        """Remove the kernels and the policy, unless another engine uses them."""
        self._held.close()
