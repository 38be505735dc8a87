"""Fused optimizers, which skip a step by themselves, so that the host need not wait to decide it.

The contract is that of `torch.amp.GradScaler`: an optimizer that has `_step_supports_amp_scaling`
reads `found_inf` and `grad_scale`, attributes that it has during the step.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from halfstep.engine.parallel.shards import is_sharded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch.optim import Optimizer

    from halfstep.techniques import Technique


def supports_skipping(
    optimizer: Optimizer, params: Iterable[torch.Tensor], techniques: Sequence[Technique]
) -> bool:
    """Tell whether an optimizer can skip a step on the device, and leave nothing behind.

    Args:
        optimizer: The optimizer.
        params: The model's parameters that it updates.
        techniques: What the recipe is carried out by.
    """
    return (
        getattr(optimizer, "_step_supports_amp_scaling", False)
        and all(technique.skips_on_device for technique in techniques)
        # A fused kernel does not take found_inf beside shared parameters.
        and not any(is_sharded(param) for param in params)
    )


def has_momentum(optimizer: Optimizer) -> bool:
    """Tell whether a fused SGD has all of its momentum buffers; any other optimizer has."""
    states = (optimizer.state.get(param, {}) for param in _with_momentum(optimizer))
    return all(state.get("momentum_buffer") is not None for state in states)


def start_momentum(optimizer: Optimizer) -> None:
    """Give a fused SGD the momentum buffers that its kernel leaves uninitialised.

    Its first step allocates them and returns early when a gradient is not finite; what was in that
    memory is then taken for momentum (torch 2.11 to 2.15). Zeros give the same first step, unless
    dampening is used, which the first step leaves out: such an optimizer cannot skip its first
    step by itself.
    """
    for param in _with_momentum(optimizer, dampened=False):
        state = optimizer.state[param]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(param)


@contextmanager
def skipping(optimizer: Optimizer, found_inf: torch.Tensor) -> Iterator[None]:
    """Let a fused optimizer skip the step inside if `found_inf`, a scalar, is set."""
    vars(optimizer).update(found_inf=found_inf, grad_scale=None)
    try:
        yield
    finally:
        vars(optimizer).pop("found_inf", None)
        vars(optimizer).pop("grad_scale", None)


def _with_momentum(optimizer: Optimizer, *, dampened: bool = True) -> Iterator[torch.Tensor]:
    """Return the parameters of a fused SGD that have momentum, those `dampened` too if asked."""
    if isinstance(optimizer, torch.optim.SGD):
        for group in optimizer.param_groups:
            if group["fused"] and group["momentum"] and (dampened or not group["dampening"]):
                yield from group["params"]
