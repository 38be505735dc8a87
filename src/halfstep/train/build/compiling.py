"""`model.compile`: whether it pays, and which batches run the compiled code.

The optimizer's step of a compiled model is PyTorch's own fused kernel: it is there at once, and a
learning rate that moves compiles nothing again. All of it changes results by rounding only, and is
decided by the config alone, never by a clock, so that a resume goes on as the run began.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import nn

PAYS_FROM = 10_000_000
"""Multiplications of a batch's forward pass from which compiled code is no slower on a CPU.

A call of it takes 0.1 to 0.2 ms of Python with its backward; `benchmarks/compile.py` measures it.
"""


class CompileWarning(UserWarning):
    """A model that is not compiled, although its config asks for it."""


def pays(model: nn.Module, batch_size: int, image_shape: tuple[int, int, int]) -> bool:
    """Tell whether compiled code saves more time than calling it takes; warn if it does not.

    Args:
        model: On its device, before a recipe has changed it.
        batch_size: Images of a training batch.
        image_shape: Of one of them: channels, height, width.
    """
    device = next(model.parameters()).device
    if device.type != "cpu":
        return True
    products = batch_size * multiplications(model, torch.zeros(1, *image_shape, device=device))
    if products >= PAYS_FROM:
        return True
    warnings.warn(
        f"model.compile is true, but the model is not compiled: the forward pass of a batch is "
        f"{products / 1e6:.1f} million multiplications, and below {PAYS_FROM / 1e6:.0f} million "
        "calling compiled code takes longer than it saves on a CPU",
        CompileWarning,
        stacklevel=2,
    )
    return False


def multiplications(model: nn.Module, images: torch.Tensor) -> int:
    """Return the multiplications of matrix products and convolutions in a forward pass."""
    was_training = model.training
    counter = FlopCounterMode(display=False)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), counter:
            model.eval()(images)
    finally:
        model.train(was_training)
    return int(counter.get_total_flops()) // 2


def as_compiled(images: int, usual: int | None) -> AbstractContextManager[object]:
    """Return a context in which a batch of fewer images than usual runs eagerly.

    The compiler would make code for its size, too, and run it once an epoch.

    Args:
        images: Of the batch.
        usual: Of those that the model is compiled for; None where it is not compiled.
    """
    if usual is None or images >= usual:
        return nullcontext()
    eagerly: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return eagerly
