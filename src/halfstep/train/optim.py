"""Optimizers and learning-rate schedules: torch's own classes, built from a config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
)

from halfstep.train.config import AdamWConfig, CosineConfig, OneCycleConfig, SgdConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from halfstep.train.config import ConstantConfig


def build_optimizer(
    config: SgdConfig | AdamWConfig, parameters: Iterable[nn.Parameter], *, fused: bool
) -> Optimizer:
    """Return the optimizer that a config names.

    Args:
        config: Which one, and its settings.
        parameters: What it updates.
        fused: Whether one kernel updates everything, which on a GPU also spares a synchronisation
            when the loss is scaled.
    """
    if isinstance(config, SgdConfig):
        return SGD(
            parameters,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            weight_decay=config.weight_decay,
            fused=fused,
        )
    return AdamW(
        parameters,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=fused,
    )


def build_schedule(
    config: ConstantConfig | CosineConfig | OneCycleConfig, optimizer: Optimizer, steps: int
) -> LRScheduler:
    """Return the schedule that a config names, to be stepped once for each optimizer step.

    Args:
        config: Which one, and the share of steps that warm up.
        optimizer: Whose learning rate it sets.
        steps: Optimizer steps of the whole run.
    """
    warm = min(round(config.warmup * steps), steps - 1)
    if isinstance(config, OneCycleConfig):
        # With a warm-up of one step torch divides by zero; none starts at the full rate instead.
        share = warm / steps if warm > 1 else 0.0
        return OneCycleLR(optimizer, config_lr(optimizer), total_steps=steps, pct_start=share)
    rise = LinearLR(optimizer, start_factor=1 / (warm + 1), total_iters=warm)
    if not isinstance(config, CosineConfig):
        return rise
    fall = CosineAnnealingLR(optimizer, T_max=steps - warm)
    return SequentialLR(optimizer, [rise, fall], milestones=[warm]) if warm else fall


def config_lr(optimizer: Optimizer) -> float:
    """Return the learning rate that an optimizer was built with."""
    return float(optimizer.defaults["lr"])
