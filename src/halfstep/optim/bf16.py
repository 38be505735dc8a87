"""SGD and Adam with moments in bf16, which halves the memory of the optimizer's state.

With rounding to nearest, the second moment could never decrease: a factor of 0.999 subtracts less
than half the spacing between bf16 numbers. With stochastic rounding, the moment is right on
average, as the weights are in Zamirai et al., "Revisiting BFloat16 Training" (arXiv:2010.06192),
section 4.1. torch's own kernels compute the step in fp32, for a few parameters at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from halfstep.kernels.rounding import round_stochastically
from halfstep.optim.foreach import (
    ForeachOptimizer,
    by_format,
    gradients,
    in_chunks,
    round_back,
    widened,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FORMATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Bf16StateOptimizer(ForeachOptimizer):
    """An optimizer that stores its moments in bf16 and computes with them in fp32.

    A subclass lists the names of its moments in `moments`, and updates them in `_update`.

    Args:
        params: Parameters, or groups of them.
        defaults: Default settings of a parameter group.
        seed: Seed of the stochastic rounding; the same seed gives the same weights.

    Raises:
        TypeError: If a parameter is not fp16, bf16, fp32 or fp64.
    """

    moments: tuple[str, ...]
    moments_dtype = torch.bfloat16

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], *, seed: int) -> None:
        # `roundings` counts the steps; with the seed, it determines the random numbers of a step.
        # It is in the groups so that the state dict contains it.
        super().__init__(params, defaults | {"stochastic_rounding": True, "roundings": 0})
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; refuse dtypes other than fp16, bf16, fp32 and fp64."""
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            if param.dtype not in _FORMATS:
                raise TypeError(
                    f"{type(self).__name__} keeps moments in bf16, and a parameter of shape "
                    f"{list(param.shape)} is {param.dtype}; write an optimizer of torch.optim"
                )

    def _start_step(self) -> None:
        for group in self.param_groups:
            group["roundings"] += 1
        self._generators.clear()

    def _update_group(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        for alike in by_format(params):
            for chunk in in_chunks(alike):
                self._update_chunk(group, chunk)

    def _update_chunk(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        for param in params:
            if not self.state[param]:
                self._start(param)
        weights = [_local(param) for param in params]
        wide = widened(weights)
        grads = [_local(grad) for grad in gradients(params)]
        kept = {name: [_local(self.state[p][name]) for p in params] for name in self.moments}
        moments = {
            name: [each.to(like.dtype) for each, like in zip(tensors, wide, strict=True)]
            for name, tensors in kept.items()
        }
        self._update(group, params, wide, grads, moments)
        round_back(weights, wide)
        generator = self._generator(params[0].device)
        for name, tensors in kept.items():
            for own, exact in zip(tensors, moments[name], strict=True):
                round_stochastically(exact.float(), generator, into=own)

    def _generator(self, device: torch.device) -> torch.Generator:
        """Return the random generator of this step; a resumed run draws the same numbers."""
        if device not in self._generators:
            entropy = (self._seed, self.param_groups[0]["roundings"])
            mixed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
            self._generators[device] = torch.Generator(device).manual_seed(mixed)
        return self._generators[device]

    def _start(self, param: torch.Tensor) -> None:
        """Create the state of a parameter: moments of zero."""
        for name in self.moments:
            self.state[param][name] = torch.zeros_like(param, dtype=torch.bfloat16)

    def _update(
        self,
        group: dict[str, Any],
        params: Sequence[torch.Tensor],
        weights: list[torch.Tensor],
        grads: list[torch.Tensor],
        moments: dict[str, list[torch.Tensor]],
    ) -> None:
        """Update `weights` and `moments`, the fp32 or fp64 values of `params`, in place."""
        raise NotImplementedError


class SGDBf16(Bf16StateOptimizer):
    """`torch.optim.SGD` with a momentum buffer in bf16.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        momentum: Momentum factor, above 0.
        nesterov: Whether to use Nesterov momentum.
        weight_decay: L2 penalty.
        seed: Seed of the stochastic rounding.

    Raises:
        ValueError: If the momentum is 0, because then there is no state to store in bf16.
    """

    moments = ("momentum_buffer",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.9,
        *,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        if not momentum > 0:
            raise ValueError(
                f"momentum is {momentum}, so that there is none to keep in bf16; write "
                "momentum=0.9, or torch.optim.SGD"
            )
        defaults = {
            "lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults, seed=seed)

    def _update(
        self,
        group: dict[str, Any],
        params: Sequence[torch.Tensor],
        weights: list[torch.Tensor],
        grads: list[torch.Tensor],
        moments: dict[str, list[torch.Tensor]],
    ) -> None:
        del params
        buffers: list[torch.Tensor | None] = [*moments["momentum_buffer"]]
        sgd(
            weights, grads, buffers, fused=True,
            weight_decay=group["weight_decay"], momentum=group["momentum"], lr=group["lr"],
            dampening=0.0, nesterov=group["nesterov"], maximize=False,
        )  # fmt: skip


class AdamBf16(Bf16StateOptimizer):
    """`torch.optim.Adam` with both moments in bf16.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Decay factors of the first and the second moment.
        eps: Added to the square root of the second moment.
        weight_decay: Strength of the weight decay.
        decoupled: Whether the weight decay is decoupled, as in AdamW, instead of an L2 penalty.
        seed: Seed of the stochastic rounding.
    """

    moments = ("exp_avg", "exp_avg_sq")

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
            "decoupled_weight_decay": decoupled,
        }  # fmt: skip
        super().__init__(params, defaults, seed=seed)

    def _start(self, param: torch.Tensor) -> None:
        super()._start(param)
        self.state[param]["step"] = torch.zeros((), device=param.device)

    def _update(
        self,
        group: dict[str, Any],
        params: Sequence[torch.Tensor],
        weights: list[torch.Tensor],
        grads: list[torch.Tensor],
        moments: dict[str, list[torch.Tensor]],
    ) -> None:
        beta1, beta2 = group["betas"]
        adam(
            weights, grads, moments["exp_avg"], moments["exp_avg_sq"], [],
            [self.state[param]["step"] for param in params],
            fused=True, amsgrad=False, beta1=beta1, beta2=beta2, lr=group["lr"], eps=group["eps"],
            weight_decay=group["weight_decay"], maximize=False,
            decoupled_weight_decay=group["decoupled_weight_decay"],
        )  # fmt: skip


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's shard of a DTensor, or the tensor itself.

    The update is element by element, so each process can update its shard alone.
    """
    own = getattr(tensor, "to_local", None)
    return tensor if own is None else own()
