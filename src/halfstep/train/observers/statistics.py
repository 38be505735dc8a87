"""Restores the running statistics of norm layers when an observer vetoes a step.

The engine does it if it may skip steps itself, and so has copies of them; this observer does it for
an engine that applies every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.engine.closing.statistics import RunningStatistics
from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from halfstep.engine import StepResult
    from halfstep.train.run.training import Training
    from halfstep.train.store.checkpoint import State


class StatisticsKeeper(Observer):
    """Keeps a copy of the statistics from before each window, also for compiled models."""

    name = "statistics"

    def begin(self, training: Training) -> None:
        self._statistics = RunningStatistics(training.setup.engine.bare_model)

    def end(self, error: BaseException | None) -> None:
        self._statistics.close()

    def around_micro_batch(self) -> AbstractContextManager[None]:
        """Copy the statistics before the first forward pass of a window."""
        return self._statistics.step_going_on()

    def stepped(self, step: int, result: StepResult | None) -> None:
        """Restore the statistics if the step was vetoed; then forget the copy."""
        if result is None:
            self._statistics.settle(torch.ones(()))
        self._statistics.forget()

    def state_dict(self) -> State:
        """Return the open window's copy, on the CPU, because another process may unpickle it."""
        saved = self._statistics.state_dict()
        return {"saved": None if saved is None else [tensor.cpu() for tensor in saved]}

    def load_state_dict(self, state: State) -> None:
        self._statistics.load_state_dict(state["saved"])
