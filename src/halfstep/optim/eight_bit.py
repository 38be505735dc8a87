"""Adam with moments in 8 bits, in one pass over memory: 2 bytes of state per parameter.

128 elements share a scale. A code stands for a power of its share of the scale, so that small
moments are about as exact as large ones, and the rounding is stochastic, so that moments are right
on average: `quantised` in `kernels/update/reference.py`. The idea of such powers is that of
FlashOptim (arXiv:2602.23349).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.optim.foreach import ForeachOptimizer
from halfstep.optim.in_one_kernel import InOneKernel

if TYPE_CHECKING:
    from collections.abc import Iterable


class Adam8(ForeachOptimizer):
    """`torch.optim.Adam` with both moments in 8 bits, on fp32 or bf16 parameters.

    A step on bf16 parameters rounds them stochastically, so that small updates are not lost.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Decay factors of the first and the second moment.
        eps: Added to the square root of the second moment.
        weight_decay: Strength of the weight decay.
        decoupled: Whether the weight decay is decoupled, as in AdamW, instead of an L2 penalty.
        seed: Seed of the stochastic rounding.

    Raises:
        TypeError: If a parameter is neither fp32 nor bf16, or is no plain dense tensor.
    """

    moments = ("exp_avg", "exp_avg_sq")
    moments_dtype = torch.int8
    reads_found_inf = True  # but not `grad_scale`, as torch asks of `_step_supports_amp_scaling`

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        seed: int = 0,
    ) -> None:
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled, "draws": 0,
        }  # fmt: skip
        super().__init__(params, defaults)
        self._kernel = InOneKernel("stochastic", seed, {})

    @property
    def lost_updates(self) -> list[torch.Tensor]:
        """Counters of the updates of bf16 parameters so far that round to nothing."""
        return list(self._kernel.lost.values())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; refuse those that the kernel cannot update."""
        super().add_param_group(param_group)
        self._refuse(self.param_groups[-1]["params"])

    def _refuse(self, params: Iterable[torch.Tensor]) -> None:
        for param in params:
            if param.dtype not in (torch.float32, torch.bfloat16) or hasattr(param, "to_local"):
                raise TypeError(
                    f"{type(self).__name__} keeps moments in 8 bits of fp32 or bf16 parameters, "
                    f"and one of shape {list(param.shape)} is a {type(param).__name__} of "
                    f"{param.dtype}; write torch.optim.AdamW"
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the state; the number of steps that drew random numbers is on the device."""
        for draws in self._kernel.draws.values():
            self.param_groups[0]["draws"] = int(draws)
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict; the next step draws the random numbers of the step after it."""
        super().load_state_dict(state_dict)
        self._kernel.draws.clear()

    def _start_step(self) -> None:
        params = [param for group in self.param_groups for param in group["params"]]
        self._refuse(params)  # a recipe may have cast them since
        order = {param: place for place, param in enumerate(params)}
        for device in {param.device for param in params}:  # as a checkpoint has it
            if device not in self._kernel.draws:
                drawn = torch.tensor(self.param_groups[0]["draws"], device=device)
                self._kernel.draws[device] = drawn
        self._kernel.step(self, set(params), order)

    def _update_group(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        """Do nothing: `_start_step` has updated all groups."""
