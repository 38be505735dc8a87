"""Evaluation mode for several models."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn


@contextmanager
def eval_mode(models: Sequence[nn.Module]) -> Iterator[None]:
    """Switch to eval mode without gradients; restore the mode of each module at the end."""
    was_training = {module: module.training for model in models for module in model.modules()}
    for model in models:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in was_training.items():
            module.training = training
