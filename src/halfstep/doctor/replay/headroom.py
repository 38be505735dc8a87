"""The half-precision value of a step that is nearest to overflow."""

from __future__ import annotations

import math

import torch

from halfstep.formats.dtypes import HALVES


class Headroom:
    """Finds the half-precision value of a forward pass that is nearest to overflow.

    Attributes:
        largest: Magnitude of this value; 0 if there is none.
        module: Path of the module that made it.
        bits: log2 of the largest factor that it can be multiplied by without overflow.
    """

    def __init__(self) -> None:
        self.largest = 0.0
        self.module = ""
        self.bits = math.inf

    def take(self, output: torch.Tensor, module: str) -> None:
        """Examine the output of an operator; waits for the device."""
        if output.dtype not in HALVES or output.numel() == 0:
            return
        low, high = torch.aminmax(output.detach())
        limit = torch.finfo(output.dtype).max
        if low.item() == -limit:  # the constant of a mask
            low = output.detach().where(output > -limit, 0).amin()
        largest = max(abs(low.item()), abs(high.item()))
        bits = math.log2(limit / largest) if largest else math.inf
        if bits < self.bits:
            self.largest, self.module, self.bits = largest, module, bits
