"""The half value of a step that is nearest to overflow."""

from __future__ import annotations

import math

import torch

from halfstep.doctor.tensors.widen import HALVES


class Headroom:
    """Examines the outputs of the operators of a forward pass.

    Attributes:
        largest: The magnitude of this value; 0 for none.
        module: The module that made it.
        bits: Number of times that it can be doubled without overflow.
    """

    def __init__(self) -> None:
        self.largest = 0.0
        self.module = ""
        self.bits = math.inf

    def take(self, output: torch.Tensor, module: str) -> None:
        """Examine the output of an operator; reads the device."""
        if output.dtype not in HALVES or output.numel() == 0:
            return
        low, high = torch.aminmax(output.detach())
        largest = max(abs(low.item()), abs(high.item()))
        bits = math.log2(torch.finfo(output.dtype).max / largest) if largest else math.inf
        if bits < self.bits:
            self.largest, self.module, self.bits = largest, module, bits
