"""The parts of a run in training, and what is done with all of them: log, save, go back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halfstep.engine import load_sharded
from halfstep.engine.parallel.checkpoints import load_whole
from halfstep.engine.parallel.shards import local
from halfstep.errors import UserError
from halfstep.train import each_process, parts, rotation
from halfstep.train.checkpoint import Checkpoint
from halfstep.train.nonfinite import remedy

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.engine import Engine, StepResult
    from halfstep.train.checkpoint import Which
    from halfstep.train.config import Config
    from halfstep.train.memory import PeakMemory
    from halfstep.train.meter import Meter
    from halfstep.train.microbatch import MicroBatches
    from halfstep.train.nonfinite import NonFinite
    from halfstep.train.probes import Probes
    from halfstep.train.processes import Processes
    from halfstep.train.progress import Progress
    from halfstep.train.setup import Setup
    from halfstep.train.step_times import StepTimes
    from halfstep.train.stopwatch import Stopwatch
    from halfstep.train.tracking import NoTracker, Tracker


@dataclass(slots=True)
class Training:
    """What a run works with while it trains.

    Attributes:
        config: What the run is.
        setup: Data, model, optimizer.
        run: The run directory.
        progress: How far it has come.
        stopwatch: Runs while it trains.
        meter: Sums of the log interval.
        step_times: How long each step takes.
        micro_batches: Forward and backward.
        nonfinite: Watches the losses.
        tracker: Where figures go.
        memory: The most that was needed.
        probes: Looks into it, if asked to.
    """

    config: Config
    setup: Setup
    run: Path
    progress: Progress
    stopwatch: Stopwatch
    meter: Meter
    step_times: StepTimes
    micro_batches: MicroBatches
    nonfinite: NonFinite
    tracker: Tracker | NoTracker
    memory: PeakMemory
    probes: Probes

    @property
    def processes(self) -> Processes:
        """Those that train together."""
        return self.setup.processes

    @property
    def step(self) -> int:
        """Windows so far: optimizer steps, and those left out; never goes back."""
        return self.setup.engine.steps + self.progress.dropped

    @property
    def all_steps_done(self) -> bool:
        """Whether `max_steps`, or the last epoch's last step, is reached."""
        return self.step >= self.setup.steps

    def log(self, result: StepResult | None) -> None:
        """Read and record the interval; a poisoned one ends the run.

        Args:
            result: What became of the newest step; None if it was left out.
        """
        engine = self.setup.engine
        interval = self.meter.read()
        norm = None if result is None else result.grad_norm
        self.tracker.train(
            {
                "step": self.step,
                "epoch": self.progress.epoch,
                "loss": interval.loss,
                "accuracy": interval.accuracy,
                "lr": float(engine.optimizer.param_groups[0]["lr"]),
                "loss_scale": engine.loss_scale if result is None else result.loss_scale,
                "grad_norm": math.nan if norm is None else norm,
                "images_per_second": interval.images_per_second,
            },
            self.memory.peak(),
        )
        if self.progress.first_nonfinite_step is None:
            self.progress.first_nonfinite_step = interval.nonfinite_step
        if interval.poisoned_step is not None:
            self.progress.stop(
                "nonfinite",
                f"the loss was not finite at step {interval.poisoned_step}, and the weights were "
                f"updated; try {remedy(engine.recipe)}",
            )

    def save(self, *names: Which, validated: bool = False) -> bool:
        """Write a checkpoint of this very moment, between two micro-batches.

        Of several processes every one calls it, and the first one writes; where they share the
        model, each writes its part before that.

        Args:
            names: What else it is from now on.
            validated: Whether the newest validation is of these weights.

        Returns:
            Whether this process has written it.
        """
        running = self.stopwatch.running
        self.stopwatch.stop()
        self.progress.train_seconds = self.stopwatch.seconds
        written = self._write(names, validated=validated)
        self.step_times.begin()
        if running:
            self.stopwatch.start()
        return written

    def _write(self, names: tuple[Which, ...], *, validated: bool) -> bool:
        each = self.processes.gather(each_process.own_state(self.meter, self.nonfinite))
        try:
            tensors = self._tensors()
        except OSError as error:
            if self.processes.is_first:
                rotation.give_up(self.run, self.step, error)
            return False
        if not self.processes.is_first:
            return False
        state = self._checkpoint(tensors, each, validated=validated)
        return rotation.save(self.run, state, keep=self.config.checkpoints.keep, names=names)

    def _tensors(self) -> dict[str, Any]:
        """Return what a checkpoint has of weights and engine, or where it was written in parts.

        Raises:
            OSError: If that cannot be done.
        """
        engine, averaged = self.setup.engine, self.config.average is not None
        if self.setup.model_is_shared:
            folder = self.run / "checkpoints"
            written = parts.write(folder, self.step, engine, self.processes, averaged=averaged)
            return {"model": {}, "averaged": None, "engine": {}, "parts": written}
        return {
            "model": engine.bare_model.state_dict(),
            "averaged": engine.averaged_state_dict() if averaged else None,
            "engine": engine.state_dict(),
        }

    def _checkpoint(
        self, tensors: dict[str, Any], each: list[dict[str, Any]], *, validated: bool
    ) -> Checkpoint:
        progress, final = self.progress, self.progress.final
        own, *others = each
        return Checkpoint(
            **tensors,
            schedule=self.setup.schedules.state_dict(),
            epoch=progress.epochs,
            batch=progress.batch,
            step=self.step,
            validated=validated,
            loss=final.loss if final else math.nan,
            accuracy=final.accuracy if final else math.nan,
            classes=tuple(self.setup.data.classes),
            preprocessing=self.setup.preprocessing(),
            rng=own["rng"],
            progress=progress.state_dict()
            | {"meter": own["meter"], "nonfinite": own["nonfinite"]}
            | ({each_process.OTHERS: others} if others else {}),
            config=self.config.model_dump(mode="json"),
        )

    def weights_are_finite(self) -> bool:
        """Tell whether a checkpoint made now could be gone back to; waits for the device."""
        tensors = map(local, self.setup.engine.bare_model.state_dict().values())
        finite = all(bool(each.isfinite().all()) for each in tensors if each.is_floating_point())
        return not self.processes.any(not finite)

    def roll_back(self) -> None:
        """Take weights, optimizer and schedule from the newest checkpoint, and stay in the data.

        Raises:
            UserError: If none is whole.
        """
        file, stored = self.processes.from_first(self._newest)
        engine = self.setup.engine
        before = self.step
        _take_over(engine, stored, file.parent)
        engine.zero_grad()
        self.setup.schedules.load_state_dict(stored.schedule)
        self.progress.dropped = before - engine.steps
        self.progress.rollbacks += 1

    def _newest(self) -> tuple[Path, Checkpoint]:
        newest = rotation.newest_whole(self.run)
        if newest is None:
            raise UserError(f"no checkpoint to go back to is left in {str(self.run)!r}")
        return newest


def pick_up(training: Training, stored: Checkpoint, folder: Path) -> None:
    """Put a run that was just set up where a checkpoint in `folder` was made."""
    progress = dict(stored.progress)
    for of_each_process in ("meter", "nonfinite", each_process.OTHERS):
        progress.pop(of_each_process, None)
    _take_over(training.setup.engine, stored, folder)
    training.setup.schedules.load_state_dict(stored.schedule)
    training.progress.load_state_dict(progress)
    training.stopwatch.add(training.progress.train_seconds)
    each_process.restore(stored, training.processes, training.meter, training.nonfinite)


def _take_over(engine: Engine, stored: Checkpoint, folder: Path) -> None:
    """Give the engine the weights and the state of a checkpoint, each process its part."""
    if stored.parts is None:
        load_whole({"models": [stored.model], "engine": stored.engine}, engine)
    else:
        load_sharded(folder / stored.parts["directory"], engine)
