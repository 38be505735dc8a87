"""LAMB: Adam with the step of each layer scaled in proportion to the norm of its weights.

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes"
(arXiv:1904.00962), algorithm 2, with the conventions of NVIDIA's implementations: all gradients are
first clipped by their global norm, and a layer without weight decay is scaled only on request
(`always_adapt`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from halfstep.optim.foreach import ForeachOptimizer, gradients, round_back, widened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class LAMB(ForeachOptimizer):
    """LAMB with the gradients clipped by their global norm.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        bias_correction: Whether to correct the bias of moments that start at zero.
        betas: Decay factors of the first and the second moment.
        eps: Added to the square root of the second moment.
        weight_decay: Strength of the weight decay.
        decoupled: Whether the decay is added to the update, as in AdamW, instead of to the
            gradient.
        grad_averaging: Whether the gradient's weight in the first moment is 1 - betas[0]; else 1.
        max_grad_norm: Maximum 2-norm of all gradients together; larger gradients are clipped.
        always_adapt: Whether updates without weight decay are scaled as well ("NVLAMB").
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        decoupled: bool = True,
        grad_averaging: bool = True,
        max_grad_norm: float = 1.0,
        always_adapt: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, defaults)
        self._decoupled = decoupled
        self._always_adapt = always_adapt
        self._shrink: torch.Tensor | None = None

    def _start_step(self) -> None:
        params = [param for group in self.param_groups for param in self._with_gradients(group)]
        norms = [_norm(param.grad) for param in params if param.grad is not None]
        self._shrink = None
        if norms:
            home = norms[0].device
            norm = torch.linalg.vector_norm(torch.stack([each.to(home) for each in norms]))
            self._shrink = (norm / self.defaults["max_grad_norm"]).clamp(min=1.0)

    def _update_group(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        assert self._shrink is not None
        group["step"] = group.get("step", 0) + 1
        for param in params:
            state = self.state[param]
            if not state:
                state["exp_avg"] = self._zeros(param)
                state["exp_avg_sq"] = self._zeros(param)
        firsts = [self.state[param]["exp_avg"] for param in params]
        seconds = [self.state[param]["exp_avg_sq"] for param in params]
        weights = self._weights(params)
        wide, wide_firsts, wide_seconds = widened(weights), widened(firsts), widened(seconds)
        shrink = self._shrink
        grads = [grad / shrink.to(grad.device) for grad in gradients(params)]
        lamb_update(
            wide,
            grads,
            wide_firsts,
            wide_seconds,
            LambSettings.of(group, decoupled=self._decoupled, always_adapt=self._always_adapt),
        )
        round_back(firsts, wide_firsts)
        round_back(seconds, wide_seconds)
        round_back(weights, wide)
        self._written(params, weights)

    def _zeros(self, param: torch.Tensor) -> torch.Tensor:
        """Return a new moment of a parameter."""
        return torch.zeros_like(param, memory_format=torch.preserve_format)

    def _weights(self, params: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors to update: `params`, unless a subclass returns master weights."""
        return params

    def _written(self, params: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
        """Copy the updated weights into `params`, in a subclass where they are other tensors."""


@dataclass(frozen=True, slots=True)
class LambSettings:
    """The settings of one update; the other attributes are arguments of `LAMB`.

    Attributes:
        step: Number of the step; the first step is 1.
    """

    step: int
    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    bias_correction: bool
    grad_averaging: bool
    decoupled: bool
    always_adapt: bool

    @classmethod
    def of(cls, group: dict[str, Any], *, decoupled: bool, always_adapt: bool) -> LambSettings:
        """Read the settings of a parameter group."""
        return cls(
            step=int(group["step"]),
            lr=group["lr"],
            betas=group["betas"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            bias_correction=group["bias_correction"],
            grad_averaging=group["grad_averaging"],
            decoupled=decoupled,
            always_adapt=always_adapt,
        )


def lamb_update(
    weights: Sequence[torch.Tensor],
    grads: list[torch.Tensor],
    firsts: list[torch.Tensor],
    seconds: list[torch.Tensor],
    settings: LambSettings,
) -> None:
    """Update weights and moments in place.

    Args:
        weights: Weights of any shape, in fp32 or fp64, as are all other tensors here.
        grads: Clipped gradients of the weights. An L2 penalty is added to them in place.
        firsts: First moments.
        seconds: Second moments.
        settings: The settings of the update.
    """
    beta1, beta2 = settings.betas
    decay = settings.weight_decay
    if decay and not settings.decoupled:
        torch._foreach_add_(grads, list(weights), alpha=decay)
    torch._foreach_mul_(firsts, beta1)
    torch._foreach_add_(firsts, grads, alpha=1 - beta1 if settings.grad_averaging else 1.0)
    torch._foreach_mul_(seconds, beta2)
    torch._foreach_addcmul_(seconds, grads, grads, 1 - beta2)
    corrected = (1 - beta1**settings.step, 1 - beta2**settings.step)
    first_correction, second_correction = corrected if settings.bias_correction else (1.0, 1.0)
    roots = [(second / second_correction).sqrt_() for second in seconds]
    torch._foreach_add_(roots, settings.eps)
    updates = [first / first_correction for first in firsts]
    torch._foreach_div_(updates, roots)
    if decay and settings.decoupled:
        torch._foreach_add_(updates, list(weights), alpha=decay)
    if settings.always_adapt or decay:
        ratios = [_trust_ratio(w, u) for w, u in zip(weights, updates, strict=True)]
        torch._foreach_mul_(updates, ratios)
    torch._foreach_mul_(updates, settings.lr)
    torch._foreach_sub_(list(weights), updates)


def _trust_ratio(weight: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """Return |weight| / |update|, or 1 if one norm is zero, without waiting for the device."""
    weight_norm, update_norm = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(update)
    defined = (weight_norm > 0) & (update_norm > 0)
    return torch.where(defined, weight_norm / update_norm, 1.0)


def _norm(grad: torch.Tensor) -> torch.Tensor:
    """Return the 2-norm of a gradient in fp32 or wider, without a copy of the gradient."""
    wide = torch.promote_types(grad.dtype, torch.float32)
    norm: torch.Tensor = torch.linalg.vector_norm(grad, dtype=wide)
    return norm
