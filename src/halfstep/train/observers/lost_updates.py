"""Records which share of the weight updates of bf16 weights rounds to nothing, where it is counted.

The count is kept on the device, and read only where a run writes its figures.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from halfstep.engine import Engine, StepResult


class LostUpdates(Observer):
    """Adds `lost_update_share` to the training figures if the engine counts lost updates."""

    name = "lost_updates"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._steps = self._lost = 0
        self._skipped: int | None = None

    def stepped(self, step: int, result: StepResult | None) -> None:
        """Count a step, unless an observer vetoed it."""
        del step
        if self._skipped is None:  # a resumed engine counts the skips of before, too
            self._skipped = 0 if self._engine.lost_updates is None else self._engine.skipped
        self._steps += result is not None

    def interval(self) -> dict[str, float]:
        """Return the share in the steps of the interval that were taken; nan if none was."""
        lost = self._engine.lost_updates
        if lost is None:
            return {}
        skipped = self._engine.skipped
        updates = (self._steps - (skipped - (self._skipped or 0))) * self._weights()
        share = (lost - self._lost) / updates if updates else math.nan
        self._steps, self._skipped, self._lost = 0, skipped, lost
        return {"lost_update_share": share}

    def _weights(self) -> int:
        groups = (
            group for optimizer in self._engine.optimizers for group in optimizer.param_groups
        )
        params = (param for group in groups for param in group["params"])
        return sum(param.numel() for param in params if param.dtype == torch.bfloat16)
