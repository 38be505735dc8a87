"""`FusedNovoGrad`: NovoGrad with Apex's signature; it can load Apex's state dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.apex.optimizers.fused import FusedOptimizer, refuse_amsgrad
from halfstep.optim.novograd import NovoGrad

if TYPE_CHECKING:
    from collections.abc import Iterable


class FusedNovoGrad(FusedOptimizer, NovoGrad):
    """NovoGrad; see `halfstep.optim.novograd.NovoGrad`.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        bias_correction: Whether to correct the bias of moments that start at zero.
        betas: Decay factors of the momentum and of the norms.
        eps: Added to the norm.
        weight_decay: Strength of the weight decay.
        amsgrad: Refused, as in Apex.
        reg_inside_moment: Whether the division by the norms and the weight decay are applied
            before the momentum instead of after it.
        grad_averaging: Whether the gradient's weight in the momentum is 1 - betas[0]; else 1.
        norm_type: 2 for the 2-norm of a layer's gradient, 0 for its largest absolute value.
        init_zero: Whether the running norms start at zero, instead of at the norms of the first
            gradients.
        set_grad_none: Whether `zero_grad()` sets gradients to None instead of zeros.

    Raises:
        RuntimeError: If `amsgrad` is set, or `norm_type` is neither 2 nor 0.
    """

    def __init__(  # noqa: PLR0913, PLR0917  (Apex's signature)
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: int = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        refuse_amsgrad("FusedNovoGrad", amsgrad=amsgrad)
        NovoGrad.__init__(
            self,
            params,
            lr,
            bias_correction=bias_correction,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            decay_in_momentum=reg_inside_moment,
            grad_averaging=grad_averaging,
            norm_type=norm_type,
            init_zero=init_zero,
        )
        self.set_grad_none = set_grad_none

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class or of Apex's.

        Apex's has the norms of each group in two lists: of the fp16 and of the fp32 parameters.
        """
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            by_dtype = group.pop("exp_avg_sq", None)
            if by_dtype is None:
                continue
            for dtype, norms in zip((torch.float16, torch.float32), by_dtype, strict=True):
                params = [p for p in group["params"] if p in self.state and p.dtype == dtype]
                for param, norm in zip(params, norms, strict=True):
                    self.state[param]["exp_avg_sq"] = norm.to(param.device, copy=True)
