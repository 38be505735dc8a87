"""`FusedNovoGrad`: NovoGrad with Apex's signature and checkpoints."""

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
        bias_correction: Whether the moments are corrected for starting at zero.
        betas: How much of the momentum and of the norms is kept in each step.
        eps: Added to the norm.
        weight_decay: Strength of the weight decay.
        amsgrad: Refused.
        reg_inside_moment: Whether norm and decay are applied before the momentum.
        grad_averaging: Whether a gradient enters the momentum with weight 1 - betas[0], not 1.
        norm_type: 2 for the 2-norm of a layer's gradient, 0 for its largest absolute value.
        init_zero: Whether the norms start at zero, and not at those of the first gradients.
        set_grad_none: Whether `zero_grad()` drops gradients and does not fill them with zeros.

    Raises:
        RuntimeError: For `amsgrad` and for another `norm_type`.
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
        """Load a state of this class or of Apex's, which has the norms of a group in two lists."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            by_dtype = group.pop("exp_avg_sq", None)
            if by_dtype is None:
                continue
            for dtype, norms in zip((torch.float16, torch.float32), by_dtype, strict=True):
                params = [p for p in group["params"] if p in self.state and p.dtype == dtype]
                for param, norm in zip(params, norms, strict=True):
                    self.state[param]["exp_avg_sq"] = norm.to(param.device, copy=True)
