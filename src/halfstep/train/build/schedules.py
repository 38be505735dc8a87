"""Builds learning-rate schedules from a config: torch's classes, counted in optimizer steps.

The engine steps all schedules except `plateau`, because it knows whether an optimizer step was
skipped. `plateau` is stepped after each validation, once its warm-up has ended; the engine steps
the warm-up.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from halfstep.errors import UserError
from halfstep.train.config.schedule import (
    CosineConfig,
    MultiStepConfig,
    OneCycleConfig,
    PlateauConfig,
    StepConfig,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.optim import Optimizer

    from halfstep.train.config.schedule import ScheduleConfig


class ScheduleWarning(UserWarning):
    """The learning rate will not follow its schedule to the end."""


@dataclass
class Schedules:
    """The learning-rate schedule of a run.

    Attributes:
        per_step: The schedule that the engine steps after each optimizer step that was not skipped,
            and saves; None if the rate does not depend on the steps.
        plateau: The schedule that `per_epoch` steps; None without one.
        metric: The validation metric for `plateau`.
        held_until: Optimizer steps of the warm-up, during which `plateau` ignores validations.
        drops: The part of `per_step` that lowers the rate at given steps; None without one.
    """

    per_step: LRScheduler | None
    plateau: ReduceLROnPlateau | None = None
    metric: str = "loss"
    held_until: int = 0
    drops: MultiStepLR | None = None

    def __post_init__(self) -> None:
        self._milestones = self.drops.milestones if self.drops else None

    def per_epoch(self, figures: Mapping[str, float]) -> None:
        """Step `plateau` with the `loss` and `accuracy` of a validation.

        The engine must have finished its work after the last step, so that `per_step` is current.
        """
        if self.plateau is None:
            return
        done = self.per_step.last_epoch if self.per_step else self.held_until
        if done >= self.held_until:
            self.plateau.step(figures[self.metric])

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `plateau`, which the engine does not save, as plain data."""
        return dict(self.plateau.state_dict()) if self.plateau else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state from `state_dict`, after the engine has loaded its own state."""
        if self.plateau:
            self.plateau.load_state_dict(state)
        if self.drops and self._milestones is not None:
            # A run that resumes with more epochs has more milestones than the saved `per_step`.
            self.drops.milestones = self._milestones


def warn_of_endless_rise(config: ScheduleConfig, *, steps: int, steps_per_epoch: int) -> None:
    """Warn if the run ends before its warm-up does; see `build` for the arguments."""
    rise = config.warmup_epochs * steps_per_epoch
    if rise >= steps:
        warnings.warn(
            f"schedule.warmup_epochs is {config.warmup_epochs:g}, and the run has "
            f"{steps / steps_per_epoch:.3g} epochs: the learning rate still rises when it ends; "
            "write schedule.warmup_epochs=0 schedule.warmup=0.1 to warm up over a tenth of it",
            ScheduleWarning,
            stacklevel=2,
        )


def build(
    config: ScheduleConfig, optimizer: Optimizer, *, steps: int, steps_per_epoch: float
) -> Schedules:
    """Return the schedule that a config names.

    Args:
        config: The config section `schedule`.
        optimizer: The optimizer whose learning rate is changed; its current rate is the peak.
        steps: Number of optimizer steps of the whole run.
        steps_per_epoch: Number of optimizer steps of an epoch, for converting epochs in the config.

    Raises:
        UserError: If the lowest learning rate is above the peak, or if the rate would drop more
            than once per step.
    """
    warm = round(config.warmup_epochs * steps_per_epoch or config.warmup * steps)
    warm = min(warm, steps - 1)
    if isinstance(config, OneCycleConfig):
        # With a single step, torch's OneCycleLR would end before it starts.
        return Schedules(_one_cycle(optimizer, warm, steps) if steps > 1 else _rise(optimizer, 0))
    if isinstance(config, PlateauConfig):
        plateau = ReduceLROnPlateau(
            optimizer,
            mode="min" if config.metric == "loss" else "max",
            factor=config.gamma,
            patience=config.patience,
            threshold=config.threshold,
            min_lr=config.min_lr,
        )
        rise = _rise(optimizer, warm) if warm else None
        return Schedules(rise, plateau, metric=config.metric, held_until=warm)
    rise = _rise(optimizer, warm)
    if isinstance(config, CosineConfig):
        return Schedules(_cosine(config, optimizer, rise, warm, steps))
    if isinstance(config, StepConfig | MultiStepConfig):
        drops = MultiStepLR(optimizer, _drops(config, steps, steps_per_epoch), config.gamma)
        return Schedules(ChainedScheduler([rise, drops]), drops=drops)
    return Schedules(rise)


def _cosine(
    config: CosineConfig, optimizer: Optimizer, rise: LRScheduler, warm: int, steps: int
) -> LRScheduler:
    highest = min(group["initial_lr"] for group in optimizer.param_groups)
    if config.min_lr > highest:
        raise UserError(
            f"schedule.min_lr is {config.min_lr}, above the learning rate of {highest}; "
            "write a lower one"
        )
    fall = CosineAnnealingLR(optimizer, T_max=steps - warm, eta_min=config.min_lr)
    return SequentialLR(optimizer, [rise, fall], milestones=[warm]) if warm else fall


def _drops(config: StepConfig | MultiStepConfig, steps: int, steps_per_epoch: float) -> list[int]:
    """Return the steps after which the rate drops; numbers of epochs may be fractions."""
    if isinstance(config, StepConfig):
        if config.every_epochs * steps_per_epoch < 1:
            raise UserError(
                f"schedule.every_epochs is {config.every_epochs}, less than one optimizer step; "
                f"allowed: {1 / steps_per_epoch:.4g} or more, as an epoch has {steps_per_epoch}"
            )
        count = int(steps / (config.every_epochs * steps_per_epoch))
        epochs = [config.every_epochs * number for number in range(1, count + 1)]
    else:
        epochs = list(config.milestones)
    return [max(1, round(epoch * steps_per_epoch)) for epoch in epochs]


class _Rise(LinearLR):
    """A linear warm-up; once it has ended, a step only advances the counters, which is faster."""

    def step(self, epoch: int | None = None) -> None:
        """Take a step; see `LRScheduler` for the argument."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        risen = self.last_epoch > self.total_iters and epoch is None
        if risen and torch.Tensor not in map(type, rates):
            self.last_epoch += 1
            self._step_count += 1
            self._last_lr = rates
        else:
            super().step(epoch)


def _rise(optimizer: Optimizer, warm: int) -> LinearLR:
    return _Rise(optimizer, start_factor=1 / (warm + 1), total_iters=warm)


def _one_cycle(optimizer: Optimizer, warm: int, steps: int) -> OneCycleLR:
    # torch divides by zero if the warm-up has one step; leave it out and start at the peak rate.
    share = warm / steps if warm > 1 else 0.0
    # Vary the momentum around the configured value, lower at a high rate, as torch's default of
    # 0.85 to 0.95 varies around 0.9. `own` is 0 if the optimizer has no momentum.
    defaults = optimizer.defaults
    own = float(defaults.get("momentum") or (defaults.get("betas") or (0.0,))[0])
    highest = min(own + 0.05, (1 + own) / 2)
    return OneCycleLR(
        optimizer,
        [group["lr"] for group in optimizer.param_groups],
        total_steps=steps,
        pct_start=share,
        cycle_momentum=own > 0,
        base_momentum=max(0.0, 2 * own - highest),
        max_momentum=highest,
    )
