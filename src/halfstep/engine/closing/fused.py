"""Fused optimizers, which skip a step by themselves, so that the host need not wait for found_inf.

The interface is that of `torch.amp.GradScaler`: an optimizer with `_step_supports_amp_scaling`
reads its own attributes `found_inf` and `grad_scale`, which are set only during the step.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.optim import Optimizer

    from halfstep.engine.window.window import Window
    from halfstep.mechanisms.technique import Technique


def skips_by_itself(window: Window, techniques: Sequence[Technique]) -> bool:
    """Tell whether an optimizer can skip its next step on the device without side effects.

    If it needs momentum buffers for it, it gets them; see `start_momentum`.

    Args:
        window: The window of the optimizer.
        techniques: The techniques that implement the recipe.
    """
    optimizer = window.optimizer
    return (
        (
            getattr(optimizer, "_step_supports_amp_scaling", False)
            or getattr(optimizer, "reads_found_inf", False)
            or any(technique.steps_in_one_kernel(optimizer) for technique in techniques)
        )
        # Fused kernels do not accept found_inf together with sharded parameters.
        and not window.sharded
        and all(technique.skips_on_device for technique in techniques)
        and start_momentum(optimizer)
    )


def start_momentum(optimizer: Optimizer) -> bool:
    """Create, filled with zeros, the momentum buffers that the fused SGD leaves uninitialized.

    torch's first step allocates the buffers, and returns early if a gradient is non-finite. The
    next step then uses uninitialized memory as momentum (torch 2.11 to 2.15). Zeros give the same
    first step, except with dampening, which the first step ignores. So an optimizer with dampening
    gets no buffers here, and cannot skip its first step by itself.

    Returns:
        Whether a fused SGD has all its buffers now; True for any other optimizer.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return True
    complete, states = True, optimizer.state
    for group in optimizer.param_groups:
        if not (group["fused"] and group["momentum"]):
            continue
        for param in group["params"]:
            if param in states and states[param].get("momentum_buffer") is not None:
                continue
            if group["dampening"]:
                complete = False
            else:
                states[param]["momentum_buffer"] = torch.zeros_like(param)
    return complete


@contextmanager
def skipping(optimizer: Optimizer, found_inf: torch.Tensor) -> Iterator[None]:
    """Make a fused optimizer skip the step inside the context if `found_inf`, a scalar, is 1."""
    vars(optimizer).update(found_inf=found_inf, grad_scale=None)
    try:
        yield
    finally:
        vars(optimizer).pop("found_inf", None)
        vars(optimizer).pop("grad_scale", None)
