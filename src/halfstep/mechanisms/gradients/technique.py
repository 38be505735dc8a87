"""The format of the gradients of half parameters.

After one backward, the gradients are in the recipe's format. From the second backward of an
accumulation window on, and when they are unscaled or clipped, they are in fp32. So accumulation and
clipping lose no value that a half format cannot represent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.formats import torch_dtype
from halfstep.formats.dtypes import HALVES
from halfstep.kernels.gradients import keep
from halfstep.mechanisms.technique import Stage, Technique

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn
    from torch.optim import Optimizer


class GradientFormat(Technique):
    """Keeps `.grad` of half parameters in a chosen format.

    Args:
        format_: Format of the gradients after one backward.
        narrow: Whether an optimizer whose groups contain the half parameters themselves gets
            gradients in the format of these parameters.
    """

    stage = Stage.CHECK
    done_by_sharding = True

    def __init__(self, format_: str, *, narrow: bool) -> None:
        self._dtype = torch_dtype(format_)
        self._narrow = narrow
        self._models: Sequence[nn.Module] = ()

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Refuse modules with sparse gradients, which cannot be widened later."""
        del optimizers
        self._models = models
        for model in models:
            for name, module in model.named_modules():
                if getattr(module, "sparse", False) is True:
                    raise ValueError(
                        f"module {name!r} makes sparse gradients, which half parameters cannot "
                        "have; write sparse=False there, or a recipe with fp32 parameters such as "
                        "recipe='fp16'"
                    )

    def before_backward(self, params: Iterable[torch.Tensor], *, again: bool) -> None:
        """Choose the format in which this backward accumulates gradients."""
        for param in params:
            if param.dtype not in HALVES:
                continue
            if param.grad is not None:
                if again:
                    keep(param, torch.float32)
            elif param.grad_dtype != self._dtype:
                param.grad_dtype = self._dtype

    def before_step(self, optimizer: Optimizer, params: Sequence[torch.Tensor]) -> None:
        """If `narrow`, cast gradients to the format of the parameters that the optimizer holds."""
        if not self._narrow:
            return
        held = {param for group in optimizer.param_groups for param in group["params"]}
        for param in params:
            if param in held and param.grad is not None:
                keep(param, param.dtype)

    def close(self) -> None:
        """Reset `grad_dtype` to the dtype of each parameter; drop gradients of another dtype."""
        for model in self._models:
            for param in model.parameters():
                if param.grad_dtype != param.dtype:
                    param.grad = None
                    param.grad_dtype = param.dtype
