"""Recognises whole numbers, such as positions and timesteps, in a tensor.

A half format represents every whole number only up to a limit: fp16 up to 2048, and bf16 up to 256.
doctor finds tensors in which larger numbers became equal, and advise predicts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MOST = 2**17
"""Elements of the largest tensor that is examined."""
_EXACT = {"torch.float16": 2048, "torch.bfloat16": 256}


def counts_up(values: torch.Tensor) -> bool:
    """Return whether two or more values in fp64 are whole numbers that rise by equal steps."""
    steps = values.flatten().diff()
    return bool((steps == steps[0]).all()) and float(steps[0]) > 0 and is_whole(values)


def is_whole(values: torch.Tensor) -> bool:
    """Return whether all values are whole numbers."""
    return bool((values == values.round()).all())


def counts_twice(tensor: torch.Tensor) -> bool:
    """Return whether a half-precision tensor has ascending whole numbers, some of them equal."""
    exact = _EXACT.get(str(tensor.dtype))
    if exact is None or not 1 < tensor.numel() <= MOST:
        return False
    values = tensor.detach().double().flatten()
    if values[-1] <= exact or not is_whole(values):
        return False
    steps = values.diff()
    return bool((steps >= 0).all() and (steps == 0).any() and (steps > 0).any())
