"""`FusedMixedPrecisionLamb`: LAMB that keeps fp32 copies of the parameters of one format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.apex.optimizers.fused import FusedOptimizer, refuse_amsgrad
from halfstep.optim.lamb import LAMB

if TYPE_CHECKING:
    from collections.abc import Iterable


class FusedMixedPrecisionLamb(FusedOptimizer, LAMB):
    """LAMB on fp32 master weights, which are rounded into the parameters after each step.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        step: Number of steps already taken, for the bias correction.
        bias_correction: Whether to correct the bias of moments that start at zero.
        betas: Decay factors of the first and the second moment.
        eps: Added to the square root of the second moment.
        weight_decay: Strength of the weight decay.
        amsgrad: Refused, as in Apex.
        adam_w_mode: Whether weight decay is decoupled instead of added to the gradient.
        grad_averaging: Whether the gradient's weight in the first moment is 1 - betas[0]; else 1.
        max_grad_norm: Maximum 2-norm of all gradients together; larger gradients are clipped.
        use_nvlamb: Whether updates without weight decay are scaled as well.
        reduced_precision_dtype: Parameters of this format get fp32 master weights and moments.

    Raises:
        RuntimeError: If `amsgrad` is set.
    """

    def __init__(  # noqa: PLR0913, PLR0917  (Apex's signature)
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        step: int = 0,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
        reduced_precision_dtype: torch.dtype | None = None,
    ) -> None:
        refuse_amsgrad("FusedMixedPrecisionLamb", amsgrad=amsgrad)
        LAMB.__init__(
            self,
            params,
            lr,
            bias_correction=bias_correction,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            decoupled=adam_w_mode,
            grad_averaging=grad_averaging,
            max_grad_norm=max_grad_norm,
            always_adapt=use_nvlamb,
        )
        self.reduced_precision_dtype = reduced_precision_dtype
        for group in self.param_groups:
            group.setdefault("step", step)

    def _zeros(self, param: torch.Tensor) -> torch.Tensor:
        dtype = torch.float32 if param.dtype == self.reduced_precision_dtype else param.dtype
        return torch.zeros_like(param, dtype=dtype)

    def _weights(self, params: list[torch.Tensor]) -> list[torch.Tensor]:
        for param in params:
            if param.dtype == self.reduced_precision_dtype:
                self.state[param].setdefault("master_param", param.detach().float().clone())
        return [self.state[param].get("master_param", param) for param in params]

    def _written(self, params: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
        torch._foreach_copy_(params, weights)
