"""NovoGrad: gradients divided by a running norm of each layer, with momentum.

Ginsburg et al., "Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep
Networks" (arXiv:1905.11286), algorithm 1, with the options of NVIDIA's implementation. The state of
a layer contains the running norm itself, not its square.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from halfstep.optim.foreach import ForeachOptimizer, gradients, round_back, widened

if TYPE_CHECKING:
    from collections.abc import Iterable

NORMS = {2: 2.0, 0: math.inf}
"""The order of the norm for each value of `norm_type`."""


class NovoGrad(ForeachOptimizer):
    """NovoGrad.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        bias_correction: Whether to correct the bias of moments that start at zero.
        betas: Decay factors of the momentum and of the norms.
        eps: Added to the norm.
        weight_decay: Strength of the weight decay.
        decay_in_momentum: Whether the division by the norms and the weight decay are applied
            before the momentum, as in the paper, instead of after it.
        grad_averaging: Whether the gradient's weight in the momentum is 1 - betas[0]; else 1.
        norm_type: 2 for the 2-norm of a layer's gradient, 0 for its largest absolute value.
        init_zero: Whether the running norms start at zero, instead of at the norms of the first
            gradients.

    Raises:
        RuntimeError: If `norm_type` is neither 2 nor 0.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decay_in_momentum: bool = False,
        grad_averaging: bool = True,
        norm_type: int = 2,
        init_zero: bool = False,
    ) -> None:
        if norm_type not in NORMS:
            raise RuntimeError(
                f"norm_type is {norm_type!r}; allowed: 2 (the 2-norm) and 0 (the largest value)"
            )
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "norm_type": norm_type,
            "init_zero": init_zero,
        }
        super().__init__(params, defaults)
        self._decay_in_momentum = decay_in_momentum

    def _update_group(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        group["step"] = group.get("step", 0) + 1
        beta1, beta2 = group["betas"]
        grads = gradients(params)
        norms = [torch.linalg.vector_norm(grad, NORMS[group["norm_type"]]) for grad in grads]
        for param, norm in zip(params, norms, strict=True):
            self._blend(group, param, norm, beta2)
        momenta = [self.state[param]["exp_avg"] for param in params]
        wide_momenta, wide = widened(momenta), widened(params)
        corrections = (1 - beta1 ** group["step"], math.sqrt(1 - beta2 ** group["step"]))
        first, second = corrections if group["bias_correction"] else (1.0, 1.0)
        divisors = [self.state[param]["exp_avg_sq"] / second + group["eps"] for param in params]
        share = 1 - beta1 if group["grad_averaging"] else 1.0
        if self._decay_in_momentum:
            grads = [grad / divisor for grad, divisor in zip(grads, divisors, strict=True)]
            torch._foreach_add_(grads, wide, alpha=group["weight_decay"])
        torch._foreach_mul_(wide_momenta, beta1)
        torch._foreach_add_(wide_momenta, grads, alpha=share)
        updates = [momentum / first for momentum in wide_momenta]
        if not self._decay_in_momentum:
            updates = [update / divisor for update, divisor in zip(updates, divisors, strict=True)]
            torch._foreach_add_(updates, wide, alpha=group["weight_decay"])
        torch._foreach_mul_(updates, group["lr"])
        torch._foreach_sub_(wide, updates)
        round_back(momenta, wide_momenta)
        round_back(params, wide)

    def _blend(
        self, group: dict[str, Any], param: torch.Tensor, norm: torch.Tensor, beta2: float
    ) -> None:
        """Update the running norm of a layer with the norm of its gradient."""
        state = self.state[param]
        if not state:
            state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            # A start at the first norm: the update below leaves it unchanged.
            state["exp_avg_sq"] = torch.zeros_like(norm) if group["init_zero"] else norm
        before = state["exp_avg_sq"]
        if group["norm_type"] == 2:
            blended = (beta2 * before.square() + (1 - beta2) * norm.square()).sqrt()
        else:
            blended = beta2 * before + (1 - beta2) * norm
        state["exp_avg_sq"] = blended
