"""Ends a run whose validation metric has stopped improving."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from halfstep.train.config.loop import EarlyStoppingConfig
    from halfstep.train.run.validate import Figures
    from halfstep.train.store.checkpoint import State


class EarlyStopping(Observer):
    """Counts the validations since the last improvement, and ends the run after `patience`."""

    name = "early_stopping"

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self._config = config
        self._waiting = 0
        self._target: float | None = None

    def validated(self, figures: Figures) -> None:
        value = getattr(figures, self._config.metric)
        sign = 1 if self._config.metric == "accuracy" else -1
        if math.isnan(value):
            self._waiting += 1
        elif self._target is None or sign * value > sign * self._target:
            self._target, self._waiting = value, 0
        else:
            self._waiting += 1

    def ends(self) -> str | None:
        if self._waiting < self._config.patience:
            return None
        found = "been nan" if self._target is None else f"not been better than {self._target:.4f}"
        return (
            f"stopped early: the validation {self._config.metric} has {found} for "
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
