"""`FusedSGD`: SGD with momentum on torch's fused kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import required
from torch.optim.sgd import sgd

from halfstep.apex.optimizers.fused import FusedOptimizer
from halfstep.optim.foreach import by_format, gradients, in_chunks, round_back, widened

if TYPE_CHECKING:
    from collections.abc import Iterable


class FusedSGD(FusedOptimizer):
    """SGD with momentum; arithmetic is at least fp32, momentum has the format of the parameter.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate; required unless each group has one.
        momentum: Factor of the momentum in each step.
        dampening: The gradient's weight in the momentum is 1 - dampening.
        weight_decay: Strength of the L2 penalty.
        nesterov: Whether to use Nesterov momentum.
        wd_after_momentum: Whether weight decay is added to the update instead of to the gradient.
        materialize_master_grads: No effect: master weights always have gradients of their own.
        set_grad_none: Whether `zero_grad()` sets gradients to None instead of zeros.

    Raises:
        ValueError: If `lr`, `momentum` or `weight_decay` is negative, a group has no learning rate,
            or `nesterov` is used without momentum or with dampening.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = required,  # type: ignore[assignment]  # torch's value for "not given"
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        given = {"learning rate": lr, "momentum": momentum, "weight_decay": weight_decay}
        for name, value in given.items():
            if value is not required and value < 0:  # type: ignore[comparison-overlap]  # see lr
                raise ValueError(f"Invalid {name} value: {value}; allowed: 0 or more")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                "Nesterov momentum requires a momentum and zero dampening; write momentum=0.9, "
                "dampening=0"
            )
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)
        self.wd_after_momentum = wd_after_momentum
        self.materialize_master_grads = materialize_master_grads
        self.set_grad_none = set_grad_none

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether the fused kernel can skip a step on the device.

        False with `wd_after_momentum`, because the parameters then decay before the kernel can skip
        the step. Also False if a group has momentum
        with dampening: dampening does not apply to the first step, but after a skipped first step
        the momentum buffer exists, so the next step would no longer count as the first.
        """
        return not self.wd_after_momentum and not any(
            group["momentum"] and group["dampening"] for group in self.param_groups
        )

    def _update_group(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        for alike in by_format(params):
            fresh = [param for param in alike if "momentum_buffer" not in self.state[param]]
            begun = [param for param in alike if "momentum_buffer" in self.state[param]]
            # Without dampening, a momentum buffer of zeros gives the same first step as no buffer.
            lists = [alike] if not group["dampening"] else [fresh, begun]
            for params_of_one_age in lists:
                for chunk in in_chunks(params_of_one_age):
                    self._update_alike(group, chunk)

    def _update_alike(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        first = group["dampening"] and "momentum_buffer" not in self.state[params[0]]
        decay = group["weight_decay"]
        wide, grads = widened(params), gradients(params)
        momenta = [self._momentum(param) for param in params] if group["momentum"] else []
        wide_momenta = widened(momenta)
        if self.wd_after_momentum and decay:
            torch._foreach_mul_(wide, 1 - group["lr"] * decay)
            decay = 0.0
        sgd(
            wide,
            grads,
            list(wide_momenta) or [None] * len(params),
            fused=True,
            weight_decay=decay,
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=0.0 if first else group["dampening"],
            nesterov=group["nesterov"],
            maximize=False,
            **self.skip_on_device(),
        )
        round_back(momenta, wide_momenta)
        round_back(params, wide)

    def _momentum(self, param: torch.Tensor) -> torch.Tensor:
        state = self.state[param]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(param)
        momentum: torch.Tensor = state["momentum_buffer"]
        return momentum
