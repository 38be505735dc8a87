"""Running statistics of norm layers, put back where an observer has a step left out.

The engine does so for the steps that it skips itself. Here they are put back for those that it is
not even asked to make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.engine.statistics import RunningStatistics
from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from halfstep.engine import StepResult
    from halfstep.train.run.training import Training
    from halfstep.train.store.checkpoint import State


class StatisticsKeeper(Observer):
    """Keeps the statistics of before each window, those of compiled code too."""

    name = "statistics"

    def begin(self, training: Training) -> None:
        self._statistics = RunningStatistics(training.setup.engine.bare_model)

    def end(self, error: BaseException | None) -> None:
        self._statistics.close()

    def around_micro_batch(self) -> AbstractContextManager[None]:
        """Keep what is there before the forward passes in it."""
        return self._statistics.step_going_on()

    def stepped(self, step: int, result: StepResult | None) -> None:
        """Put back what is kept, if the step was left out."""
        if result is None:
            self._statistics.settle(torch.ones(()))
        self._statistics.forget()

    def state_dict(self) -> State:
        """Return what an open window keeps, on the CPU: another process may unpickle it."""
        saved = self._statistics.state_dict()
        return {"saved": None if saved is None else [tensor.cpu() for tensor in saved]}

    def load_state_dict(self, state: State) -> None:
        self._statistics.load_state_dict(state["saved"])
