"""A run in progress, as its observers see it: its objects and its position."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfstep import step_observer
from halfstep.train.run.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.train.build.setup import Setup
    from halfstep.train.config.run import RunConfig
    from halfstep.train.processes.processes import Processes


class Stopwatch:
    """Measures the seconds of a run, including those before it was resumed."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._seconds + running

    @property
    def running(self) -> bool:
        """Whether the stopwatch is running."""
        return self._since is not None

    def add(self, seconds: float) -> None:
        """Add seconds that an earlier process of the run measured."""
        self._seconds += seconds

    def start(self) -> None:
        """Start or continue measuring."""
        self.stop()
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Stop measuring; keep the seconds so far."""
        self._seconds, self._since = self.seconds, None


@dataclass(frozen=True, slots=True)
class Training:
    """A run in progress.

    Attributes:
        config: The config of the run.
        setup: Data, model and optimizer; `setup.engine` owns the model and the optimizer.
        run: The run directory.
        resumed_at: The step that the run was resumed at; None for a new run.
        progress: The counters and scores of the run.
        stopwatch: Measures the training time.
        wall: Measures the time from reading the data to the end.
    """

    config: RunConfig
    setup: Setup
    run: Path
    resumed_at: int | None = None
    progress: Progress = field(default_factory=Progress)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    wall: Stopwatch = field(default_factory=Stopwatch)

    @property
    def processes(self) -> Processes:
        """The processes that train the run together."""
        return self.setup.processes

    @property
    def title(self) -> str:
        """Title of the run among other runs: its config, recipe and seed."""
        return f"{self.config.name} {self.setup.engine.recipe.name} seed {self.config.seed}"

    @property
    def step(self) -> int:
        """Number of steps so far, including skipped and rolled-back ones; never decreases."""
        return self.setup.engine.steps + self.progress.dropped

    @property
    def all_steps_done(self) -> bool:
        """Whether the run has reached `max_steps` or the last step of its last epoch."""
        return self.step >= self.setup.steps

    @property
    def validation_due(self) -> bool:
        """Whether a validation follows when the current epoch has ended."""
        epoch, epochs = self.progress.epoch, self.config.epochs
        return epoch % self.config.val_every == 0 or epoch == epochs or self.all_steps_done

    def leave_out(self) -> None:
        """Skip a step: discard the window that closes, and count the step."""
        engine = self.setup.engine
        for optimizer in engine.optimizers:
            step_observer.active.drops(optimizer)
        engine.discard()
        self.progress.dropped += 1
