"""`FusedAdam`: Adam and AdamW on torch's fused kernel, with fp32 moments for half parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.adam import adam

from halfstep.apex.optimizers.fused import FusedOptimizer, refuse_amsgrad
from halfstep.formats.dtypes import HALVES
from halfstep.optim.foreach import by_format, gradients, in_chunks, round_back, widened

if TYPE_CHECKING:
    from collections.abc import Iterable


class FusedAdam(FusedOptimizer):
    """Adam with decoupled weight decay by default.

    Args:
        params: Parameters, or groups of them; fp32, fp64, fp16 or bf16.
        lr: Learning rate.
        bias_correction: Whether to correct the bias of moments that start at zero.
        betas: Decay factors of the first and the second moment.
        eps: Added to the square root of the second moment.
        adam_w_mode: Whether weight decay is decoupled (AdamW) or added to the gradient (Adam).
        weight_decay: Strength of the weight decay.
        amsgrad: Refused, as in Apex.
        set_grad_none: Whether `zero_grad()` sets gradients to None instead of zeros.
        capturable: Keep the learning rate in a tensor on the parameters' device, for CUDA graphs.
        master_weights: Keep fp32 copies of half-precision parameters; needs `capturable`.

    Raises:
        RuntimeError: If `amsgrad` is set, or `master_weights` without `capturable`.
    """

    def __init__(  # noqa: PLR0913, PLR0917  (Apex's signature)
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
    ) -> None:
        refuse_amsgrad("FusedAdam", amsgrad=amsgrad)
        if master_weights and not capturable:
            raise RuntimeError(
                "Master weights is currently only supported with the capturable version; write "
                "FusedAdam(..., capturable=True, master_weights=True)"
            )
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        self.capturable = capturable  # read by add_param_group, which super().__init__ calls
        super().__init__(params, defaults)
        self.adam_w_mode = adam_w_mode
        self.set_grad_none = set_grad_none
        self.master_weights = master_weights
        self._step_supports_amp_scaling = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; with `capturable`, its learning rate becomes a tensor."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if self.capturable and group["params"]:
            device = group["params"][0].device
            group["lr"] = torch.tensor(float(group["lr"]), device=device)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class or of Apex's, which has one step count per group."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            steps = group.pop("step", None)
            for param in group["params"] if steps is not None else ():
                if param in self.state:
                    self.state[param]["step"] = torch.tensor(float(steps), device=param.device)

    def _update_group(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        for alike in by_format(params):
            for chunk in in_chunks(alike):
                self._update_alike(group, chunk)

    def _update_alike(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        states = [self._state_of(param) for param in params]
        weights = [
            state.get("master_param", param) for state, param in zip(states, params, strict=True)
        ]
        steps = [state["step"] for state in states]
        if not group["bias_correction"]:
            # At an infinite step count, the kernel's bias correction is 1.
            steps = [torch.full_like(step, math.inf) for step in steps]
        wide = widened(weights)
        adam(
            wide,
            gradients(params),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            fused=True,
            decoupled_weight_decay=self.adam_w_mode,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            **self.skip_on_device(),
        )
        round_back(weights, wide)
        if self.master_weights:
            torch._foreach_copy_(params, weights)

    def _state_of(self, param: torch.Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[param]
        if not state:
            wide = torch.float32 if param.dtype in HALVES else param.dtype
            state["step"] = torch.zeros((), device=param.device)
            state["exp_avg"] = torch.zeros_like(param, dtype=wide)
            state["exp_avg_sq"] = torch.zeros_like(param, dtype=wide)
            if self.master_weights and param.dtype in HALVES:
                state["master_param"] = param.detach().float().clone()
        return state
