"""Ends a run whose validation metric has stopped improving."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from halfstep.train.store.checkpoint import State
    from halfstep.train.task.figures import Figures, Monitor


class EarlyStopping(Observer):
    """Counts the validations since the last improvement, and ends the run after `patience`.

    Args:
        patience: Number of consecutive validations without improvement.
        monitor: The metric that must improve.
    """

    name = "early_stopping"

    def __init__(self, patience: int, monitor: Monitor) -> None:
        self._patience = patience
        self._monitor = monitor
        self._waiting = 0
        self._target: float | None = None

    def validated(self, figures: Figures) -> None:
        value = figures.scalars()[self._monitor.name]
        if not math.isnan(value) and self._monitor.is_better(value, self._target):
            self._target, self._waiting = value, 0
        else:
            self._waiting += 1

    def ends(self) -> str | None:
        if self._waiting < self._patience:
            return None
        state = "been nan" if self._target is None else f"not been better than {self._target:.4f}"
        return (
            f"stopped early: the validation {self._monitor.name} has {state} for "
            f"{self._waiting} validations"
        )

    def state_dict(self) -> State:
        """Return the best value, and the number of validations since then."""
        return {"waiting": self._waiting, "target": self._target}

    def load_state_dict(self, state: State) -> None:
        self._waiting, self._target = state["waiting"], state["target"]


def waited(states: dict[str, State]) -> int:
    """Return the validations since the last improvement, from the states in a checkpoint."""
    return int(states.get(EarlyStopping.name, {}).get("waiting", 0))
