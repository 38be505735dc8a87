"""Autocast: fp32 parameters, matrix products and convolutions in a half format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.formats import torch_dtype
from halfstep.mechanisms.technique import Stage, Technique

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Autocast(Technique):
    """Runs the forward pass under `torch.autocast`.

    Args:
        format_: The half format of matrix products and convolutions.
    """

    stage = Stage.FORWARD

    def __init__(self, format_: str) -> None:
        self._dtype = torch_dtype(format_)

    def forward(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return a new autocast context, so that no cached cast of a weight outlives its update."""
        return torch.autocast(device.type, dtype=self._dtype)
