"""A run in training, as its observers see it: what it works with, and how far it has come."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfstep import step_observer
from halfstep.train.run.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.train.build.setup import Setup
    from halfstep.train.config import Config
    from halfstep.train.processes.processes import Processes


class Stopwatch:
    """Counts seconds of a run, over all processes that worked on it."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """The time so far."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._seconds + running

    @property
    def running(self) -> bool:
        """Whether it counts now."""
        return self._since is not None

    def add(self, seconds: float) -> None:
        """Add what was counted before, in another process."""
        self._seconds += seconds

    def start(self) -> None:
        """Count from now on."""
        self.stop()
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Count no more."""
        self._seconds, self._since = self.seconds, None


@dataclass(frozen=True, slots=True)
class Training:
    """A run in training.

    Attributes:
        config: What the run is.
        setup: Data, model, optimizer; `setup.engine` owns the last two.
        run: The run directory.
        resumed_at: The step that it goes on from; None for a new run.
        progress: How far it has come.
        stopwatch: Runs while it trains.
        wall: Runs from reading the data to the end.
    """

    config: Config
    setup: Setup
    run: Path
    resumed_at: int | None = None
    progress: Progress = field(default_factory=Progress)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    wall: Stopwatch = field(default_factory=Stopwatch)

    @property
    def processes(self) -> Processes:
        """Those that train together."""
        return self.setup.processes

    @property
    def title(self) -> str:
        """What the run is called where it is one of many."""
        return f"{self.config.name} {self.setup.engine.recipe.name} seed {self.config.seed}"

    @property
    def step(self) -> int:
        """Windows so far: optimizer steps, and those left out; never goes back."""
        return self.setup.engine.steps + self.progress.dropped

    @property
    def all_steps_done(self) -> bool:
        """Whether `max_steps`, or the last epoch's last step, is reached."""
        return self.step >= self.setup.steps

    def leave_out(self) -> None:
        """Drop the gradients of the window that closes now, which counts as a step left out."""
        engine = self.setup.engine
        for optimizer in engine.optimizers:
            step_observer.active.drops(optimizer)
        engine.zero_grad()
        self.progress.dropped += 1
        self.progress.dropped_in_a_row += 1
