"""Whether a run may go on to another number of epochs than it was started with.

It may where it then ends bitwise as a run that had that number from the start: where nothing that
was done depends on it. A cosine, a one-cycle and a warm-up over a share of the run are laid out
over all epochs from the first step on, so that what goes on with another number would be no run
that a config describes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.train.config.schedule import CosineConfig, OneCycleConfig
from halfstep.train.observers.early_stopping import waited

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.train.config import Config
    from halfstep.train.store.checkpoint import Checkpoint


def is_another_length(stored: Checkpoint, config: Config) -> bool:
    """Tell whether a checkpoint was made by a run of another number of epochs."""
    return bool(stored.config["epochs"] != config.epochs)


def refuse_inexact(stored: Checkpoint, config: Config, file: Path) -> None:
    """Refuse another number of epochs where the run would not be one that had it from the start."""
    if not is_another_length(stored, config):
        return
    before, now = stored.config["epochs"], config.epochs
    said = f"--resume: the run in {str(file.parent.parent)!r} was started with epochs={before}"
    if stored.epoch >= now:
        raise UserError(
            f"{said} and has finished {stored.epoch}, and the config says {now}; write --options "
            f"epochs={max(before, stored.epoch + 1)}"
        )
    reason = _of_the_schedule(config, min(before, now))
    if reason:
        weights = file.with_name("last.pt")
        raise UserError(
            f"{said}, and {reason}, so that it cannot go on as one of {now}; write --tag NEW "
            f"--options model.weights={weights} epochs={now - stored.epoch} without --resume for a "
            f"new run that starts from its weights, or --resume with epochs={before}"
        )
    if config.max_steps is not None and stored.step >= config.max_steps:
        raise UserError(
            f"{said} and was ended by max_steps={config.max_steps}, so that more epochs add "
            f"nothing; write --resume with epochs={before}"
        )
    stopping = config.early_stopping
    if stopping is not None and waited(stored.observers) >= stopping.patience:
        raise UserError(
            f"{said} and was stopped early after {stored.epoch}, so that more epochs add nothing; "
            f"write --resume with epochs={before}"
        )


def _of_the_schedule(config: Config, shorter: int) -> str | None:
    """Return why the rates of the epochs that both lengths have differ, or None."""
    schedule = config.schedule
    if isinstance(schedule, CosineConfig | OneCycleConfig):
        return f"schedule {schedule.name} is laid out over all epochs"
    if schedule.warmup and not schedule.warmup_epochs:
        return f"schedule.warmup={schedule.warmup:g} is a share of all epochs"
    if schedule.warmup_epochs >= shorter:
        return f"schedule.warmup_epochs={schedule.warmup_epochs:g} is cut off at the last step"
    return None
