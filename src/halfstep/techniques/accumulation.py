"""fp16 accumulation: what fp16 training meets on hardware without fp32 accumulators."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from halfstep.kernels.fp16_accumulation import fp16_accumulation
from halfstep.techniques.base import Stage, Technique, device_types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.optim import Optimizer


class Fp16Accumulation(Technique):
    """Sum fp16 products in fp16, on every device that the models are on."""

    stage = Stage.OVER_KERNELS

    def __init__(self) -> None:
        self._held = ExitStack()

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Take hold of the kernels."""
        del optimizers
        for device_type in device_types(models):
            self._held.enter_context(fp16_accumulation(device_type))

    def close(self) -> None:
        """Let go of them."""
        self._held.close()
