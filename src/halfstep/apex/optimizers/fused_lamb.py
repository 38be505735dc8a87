"""`FusedLAMB`: LAMB with Apex's signature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfstep.apex.optimizers.fused import FusedOptimizer, refuse_amsgrad
from halfstep.optim.lamb import LAMB

if TYPE_CHECKING:
    from collections.abc import Iterable


class FusedLAMB(FusedOptimizer, LAMB):
    """LAMB with one global clip of the gradients; see `halfstep.optim.lamb.LAMB`.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        bias_correction: Whether to correct the bias of moments that start at zero.
        betas: Decay factors of the first and the second moment.
        eps: Added to the square root of the second moment.
        weight_decay: Strength of the weight decay.
        amsgrad: Refused, as in Apex.
        adam_w_mode: Whether weight decay is decoupled instead of added to the gradient.
        grad_averaging: Whether the gradient's weight in the first moment is 1 - betas[0]; else 1.
        set_grad_none: Whether `zero_grad()` sets gradients to None instead of zeros.
        max_grad_norm: Maximum 2-norm of all gradients together; larger gradients are clipped.
        use_nvlamb: Whether updates without weight decay are scaled as well.

    Raises:
        RuntimeError: If `amsgrad` is set.
    """

    def __init__(  # noqa: PLR0913, PLR0917  (Apex's signature)
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        refuse_amsgrad("FusedLAMB", amsgrad=amsgrad)
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
        self.set_grad_none = set_grad_none
