"""Decides whether `model.compile` takes effect, and which batches run the compiled code.

The optimizer step of a compiled model is not compiled, but uses PyTorch's fused kernel: it is
available at once, and a new learning rate causes no recompilation. Compiled code changes results
only by rounding. The decision depends only on the config, never on measured times, so that a
resumed run decides in the same way.
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
"""Minimum multiplications in a batch's forward pass at which compiled code pays off on a CPU.

Calling compiled code and its backward takes 0.1 to 0.2 ms in Python (`benchmarks/compile.py`).
"""


class CompileWarning(UserWarning):
    """A model is not compiled, although its config requests it."""


def pays(model: nn.Module, batch_size: int, image_shape: tuple[int, int, int]) -> bool:
    """Tell whether compiled code saves more time than calling it takes; warn if it does not.

    Args:
        model: The model on its device, before a recipe has changed it.
        batch_size: Number of images in a training batch.
        image_shape: Channels, height and width of an image.
    """
    device = next(model.parameters()).device
    if device.type != "cpu":
        return True
    products = batch_size * multiplications(model, torch.zeros(1, *image_shape, device=device))
    if products >= PAYS_FROM:
        return True
    warnings.warn(
        f"model.compile is true, but the model is not compiled: the forward pass of a batch has "
        f"{products / 1e6:.1f} million multiplications, and below {PAYS_FROM / 1e6:.0f} million "
        "the overhead of compiled code exceeds what it saves on a CPU",
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
    """Return a context that runs a batch of fewer images than usual eagerly.

    Otherwise torch would also compile code for this batch size, and use it once per epoch.

    Args:
        images: Number of images in the batch.
        usual: Number of images in the batches that the model is compiled for; None if it is not
            compiled.
    """
    if usual is None or images >= usual:
        return nullcontext()
    eagerly: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return eagerly
