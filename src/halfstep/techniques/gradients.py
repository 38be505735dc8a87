"""The format of the gradients of half parameters.

One backward leaves them in the recipe's format. From the second backward of a window on, and
whenever they are unscaled or clipped, they are kept in fp32, so that neither accumulation nor
clipping loses what a half format cannot hold. `Tensor.grad_dtype` makes autograd accumulate in fp32
beside a half parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.formats import torch_dtype
from halfstep.techniques.base import HALVES, Stage, Technique

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn
    from torch.optim import Optimizer


class GradientFormat(Technique):
    """Keep `.grad` of half parameters in a chosen format.

    Args:
        format_: Format that one backward leaves its gradients in.
        narrow: Whether an optimizer that holds half parameters wants gradients in their format.
    """

    stage = Stage.CHECK
    done_by_sharding = True

    def __init__(self, format_: str, *, narrow: bool) -> None:
        self._dtype = torch_dtype(format_)
        self._narrow = narrow
        self._models: Sequence[nn.Module] = ()

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Refuse what cannot be widened later."""
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
        """Choose the format that this backward accumulates in."""
        for param in params:
            if param.dtype not in HALVES:
                continue
            if param.grad is not None:
                if again:
                    keep_grad(param, torch.float32)
            elif param.grad_dtype != self._dtype:
                param.grad_dtype = self._dtype

    def before_step(self, optimizer: Optimizer, params: Sequence[torch.Tensor]) -> None:
        """Give gradients back the format of a parameter that the optimizer itself updates."""
        if not self._narrow:
            return
        held = {param for group in optimizer.param_groups for param in group["params"]}
        for param in params:
            if param in held and param.grad is not None:
                keep_grad(param, param.dtype)

    def close(self) -> None:
        """Let autograd choose the format again."""
        for model in self._models:
            for param in model.parameters():
                if param.grad_dtype != param.dtype:
                    param.grad = None
                    param.grad_dtype = param.dtype


def keep_grad(param: torch.Tensor, dtype: torch.dtype) -> None:
    """Cast `param.grad`, and what is accumulated into it from now on, to `dtype`."""
    grad = param.grad
    if grad is not None and grad.dtype != dtype:
        put_grad(param, grad.to(dtype))


def put_grad(param: torch.Tensor, grad: torch.Tensor) -> None:
    """Set `param.grad`, and the format of what is accumulated into it from now on."""
    if param.grad_dtype != grad.dtype:
        param.grad = None
        param.grad_dtype = grad.dtype
    param.grad = grad
