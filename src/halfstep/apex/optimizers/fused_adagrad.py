"""`FusedAdagrad`: Adagrad on torch's foreach implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.adagrad import adagrad

from halfstep.apex.optimizers.fused import FusedOptimizer
from halfstep.optim.foreach import by_format, gradients, in_chunks, round_back, widened

if TYPE_CHECKING:
    from collections.abc import Iterable


class FusedAdagrad(FusedOptimizer):
    """Adagrad; arithmetic is at least fp32, the sum of squares has the format of the parameter.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        eps: Added to the square root of the sum.
        weight_decay: Strength of the weight decay.
        set_grad_none: Whether `zero_grad()` sets gradients to None instead of zeros.
        adagrad_w_mode: Whether weight decay is decoupled instead of added to the gradient.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
        adagrad_w_mode: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})
        self.adagrad_w_mode = adagrad_w_mode
        self.set_grad_none = set_grad_none

    def _update_group(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        for alike in by_format(params):
            for chunk in in_chunks(alike):
                self._update_alike(group, chunk)

    def _update_alike(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        for param in params:
            if not self.state[param]:
                self.state[param]["sum"] = torch.zeros_like(param)
        sums = [self.state[param]["sum"] for param in params]
        wide, wide_sums = widened(params), widened(sums)
        decay = group["weight_decay"]
        if self.adagrad_w_mode and decay:
            torch._foreach_mul_(wide, 1 - group["lr"] * decay)
            decay = 0.0
        adagrad(
            wide,
            gradients(params),
            wide_sums,
            # The step counts are only for `lr_decay`, which Apex does not have.
            [torch.zeros(()) for _ in params],
            foreach=True,
            lr=group["lr"],
            weight_decay=decay,
            lr_decay=0.0,
            eps=group["eps"],
            maximize=False,
        )
        round_back(sums, wide_sums)
        round_back(params, wide)
