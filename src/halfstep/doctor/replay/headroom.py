"""The half number of a step that is nearest to overflow."""

from __future__ import annotations

import math

import torch

from halfstep.doctor.tensors.widen import HALVES


class Headroom:
    """Looks at what the operators of a forward make.

    Attributes:
        largest: The magnitude of that number; 0 for none.
        module: The module that made it.
        bits: How often it can be doubled.
    """

    def __init__(self) -> None:
        self.largest = 0.0
        self.module = ""
        self.bits = math.inf

    def take(self, output: torch.Tensor, module: str) -> None:
        """Take in what an operator has made; reads the device."""
        if output.dtype not in HALVES or output.numel() == 0:
            return
        low, high = torch.aminmax(output.detach())
        largest = max(abs(low.item()), abs(high.item()))
        bits = math.log2(torch.finfo(output.dtype).max / largest) if largest else math.inf
        if bits < self.bits:
            self.largest, self.module, self.bits = largest, module, bits
