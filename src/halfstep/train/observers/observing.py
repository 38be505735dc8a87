"""Builds the observers of a run: those that its config requests, and those of its caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.errors import UserError, failing
from halfstep.train.config import Config, import_path
from halfstep.train.config.loop import EarlyStoppingConfig
from halfstep.train.observers import sinks
from halfstep.train.observers.diagnosis import Doctor
from halfstep.train.observers.early_stopping import EarlyStopping
from halfstep.train.observers.energy import Energy
from halfstep.train.observers.lost_updates import LostUpdates
from halfstep.train.observers.memory import PeakMemory
from halfstep.train.observers.meter import Meter
from halfstep.train.observers.nonfinite import NonFinite, NonFiniteSteps
from halfstep.train.observers.probes import Probes
from halfstep.train.observers.progress_report import ProgressReport
from halfstep.train.observers.statistics import StatisticsKeeper
from halfstep.train.observers.step_times import StepTimes
from halfstep.train.observers.tracking import MetricsLines, Sinks
from halfstep.train.run.observer import Observer, overrides
from halfstep.train.task.figures import Monitor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.train.config.run import RunConfig
    from halfstep.train.run.training import Training


def named(config: RunConfig) -> list[Observer]:
    """Create the user's observers, which the field `observers` of a config names.

    Raises:
        UserError: If one cannot be imported or created, or is not an observer; or if a package
            that `tracking` needs is missing.
    """
    sinks.require(config.tracking)
    classes = []
    for path in config.observers:
        make = import_path.load(path, "observers")
        with failing(f"observers has {path!r}, which fails when it is made"):
            made = make()
        if not isinstance(made, Observer):
            raise UserError(
                f"observers has {path!r}, which makes a {type(made).__name__}; write the path of a "
                "subclass of halfstep.Observer that takes no arguments"
            )
        classes.append(made)
    return classes


def of_run(training: Training, own: Sequence[Observer], *, quiet: bool) -> list[Observer]:
    """Return all observers of a run, in the order of their calls; `own` are those of the user."""
    config, device, processes = training.config, training.setup.device, training.processes
    memory = PeakMemory(device)
    recording = [MetricsLines(), ProgressReport(memory.peak, quiet=quiet), Sinks()]
    return [
        memory,
        Energy(device, processes),
        *(recording if processes.is_first else []),
        *(
            [Probes(config, training.setup, memory.paused)]
            if isinstance(config, Config) and config.probes
            else []
        ),
        *_stopping(config, training.setup.task.monitor),
        *steps_and_losses(training, own),
        StepTimes(device, lambda: training.stopwatch.seconds),
        *own,
        *([Doctor()] if config.doctor and not config.graph else []),
    ]


def _stopping(config: RunConfig, monitor: Monitor) -> list[Observer]:
    chosen = config.early_stopping
    if chosen is None:
        return []
    if isinstance(chosen, EarlyStoppingConfig):
        monitor = Monitor(chosen.metric, less_is_better=chosen.metric == "loss")
    return [EarlyStopping(chosen.patience, monitor)]


def steps_and_losses(training: Training, own: Sequence[Observer] = ()) -> list[Observer]:
    """Return the observers that affect or measure every step.

    If `own`, the user's observers, can veto a step, and the engine keeps no running statistics,
    because it skips no step, they include `StatisticsKeeper`.
    """
    config, device, task = training.config, training.setup.device, training.setup.task
    recipe = training.setup.engine.recipe
    stops = config.on_nonfinite == "stop"
    veto = any(overrides(observer, "veto") for observer in own)
    return [
        *([StatisticsKeeper()] if veto and stops and recipe.scaling is None else []),
        *([] if stops else [NonFinite(training)]),
        Meter(
            lambda: training.stopwatch.seconds,
            training.processes,
            size=task.size,
            classifies=task.classifies,
        ),
        LostUpdates(training.setup.engine),
        NonFiniteSteps(device, training.progress, recipe, training.processes),
    ]
