"""fp16 accumulation: emulates fp16 training on hardware without fp32 accumulators."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from halfstep.mechanisms.accumulator.kernels import fp16_accumulation
from halfstep.mechanisms.technique import Stage, Technique, device_types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.optim import Optimizer


class Fp16Accumulation(Technique):
    """Makes fp16 matrix products accumulate in fp16, on every kind of device with parameters."""

    stage = Stage.OVER_KERNELS

    def __init__(self) -> None:
        self._held = ExitStack()

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Register the kernels that accumulate in fp16."""
        del optimizers
        for device_type in device_types(models):
            self._held.enter_context(fp16_accumulation(device_type))

    def close(self) -> None:
        """Remove the kernels."""
        self._held.close()
