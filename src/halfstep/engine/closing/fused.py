"""Fused optimizers, which skip a step by themselves, so that the host need not wait for found_inf.

The interface is that of `torch.amp.GradScaler`: an optimizer with `_step_supports_amp_scaling`
reads its own attributes `found_inf` and `grad_scale`, which are set only during the step.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from halfstep.engine.parallel.shards import is_sharded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch.optim import Optimizer

    from halfstep.mechanisms.technique import Technique


def supports_skipping(
    optimizer: Optimizer, params: Iterable[torch.Tensor], techniques: Sequence[Technique]
) -> bool:
    """Tell whether an optimizer can skip a step on the device without side effects.

    Args:
        optimizer: The optimizer.
        params: The model's parameters that the optimizer updates.
        techniques: The techniques that implement the recipe.
    """
    return (
        getattr(optimizer, "_step_supports_amp_scaling", False)
        and all(technique.skips_on_device for technique in techniques)
        # Fused kernels do not accept found_inf together with sharded parameters.
        and not any(is_sharded(param) for param in params)
    )


def has_momentum(optimizer: Optimizer) -> bool:
    """Tell whether a fused SGD has all its momentum buffers; True for any other optimizer."""
    states = (optimizer.state.get(param, {}) for param in _with_momentum(optimizer))
    return all(state.get("momentum_buffer") is not None for state in states)


def start_momentum(optimizer: Optimizer) -> None:
    """Create, filled with zeros, the momentum buffers that the fused SGD leaves uninitialized.

    torch's first step allocates the buffers, and returns early if a gradient is non-finite. The
    next step then uses uninitialized memory as momentum (torch 2.11 to 2.15). Zeros give the same
    first step, except with dampening, which the first step ignores. So an optimizer with dampening
    gets no buffers here, and cannot skip its first step by itself.
    """
    for param in _with_momentum(optimizer, dampened=False):
        state = optimizer.state[param]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(param)


@contextmanager
def skipping(optimizer: Optimizer, found_inf: torch.Tensor) -> Iterator[None]:
    """Make a fused optimizer skip the step inside the context if `found_inf`, a scalar, is 1."""
    vars(optimizer).update(found_inf=found_inf, grad_scale=None)
    try:
        yield
    finally:
        vars(optimizer).pop("found_inf", None)
        vars(optimizer).pop("grad_scale", None)


def _with_momentum(optimizer: Optimizer, *, dampened: bool = True) -> Iterator[torch.Tensor]:
    """Yield the parameters of a fused SGD with momentum; with dampening only if `dampened`."""
    if isinstance(optimizer, torch.optim.SGD):
        for group in optimizer.param_groups:
            if group["fused"] and group["momentum"] and (dampened or not group["dampening"]):
                yield from group["params"]
