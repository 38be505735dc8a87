"""The run: epochs of training and validation under a recipe, from objects to a run directory.

`train` builds the objects from a config, and `halfstep.fit` gets them from a program; the function
`fit` trains both.

The steps of an epoch are in `epoch.py`, the end of a run is in `ending.py`; this file has the code
before the first epoch and between epochs. Everything else in a run is an observer.
"""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.engine import LossScaleCollapse
from halfstep.errors import UserError
from halfstep.kernels.accelerators import in_use
from halfstep.kernels.native.memory import freed_memory_kept
from halfstep.train.build import schedules
from halfstep.train.build.setup import set_up
from halfstep.train.data.pipeline.loader import dead_workers_explained
from halfstep.train.environment import describe, on_threads, pick_device
from halfstep.train.loop import ending, resume, saving
from halfstep.train.loop.epoch import Loop, train_epoch
from halfstep.train.loop.saving import CheckpointWriter
from halfstep.train.observers import observing
from halfstep.train.processes import distributed
from halfstep.train.processes.processes import ALONE
from halfstep.train.run.microbatch import MicroBatches, out_of_memory_explained
from halfstep.train.run.observer import Observers
from halfstep.train.run.progress import Score
from halfstep.train.run.signals import StopRequests
from halfstep.train.run.training import Stopwatch, Training
from halfstep.train.run.validate import validate
from halfstep.train.store import checkpoint, run_directory
from halfstep.train.task.in_step import Asked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

    from halfstep.train.build.setup import Setup
    from halfstep.train.config import Config
    from halfstep.train.config.run import RunConfig
    from halfstep.train.loop.resume import Start
    from halfstep.train.processes.processes import Processes
    from halfstep.train.run.observer import Observer
    from halfstep.train.store.checkpoint import Which
    from halfstep.train.store.run_directory import Summary


def train(
    config: Config,
    run: Path,
    *,
    tag: str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    go_on: str | None = None,
    processes: Processes = ALONE,
    observers: Sequence[Observer] = (),
) -> Summary:
    """Train a config and write the run directory `run`; see `fit` for the rest."""

    def build(
        config: Config,
        device: torch.device,
        weights: Mapping[str, torch.Tensor] | None,
        *,
        new: bool,
    ) -> Setup:
        setup = set_up(config, device, weights, processes, initial_weights=new)
        schedules.warn_of_endless_rise(
            config.schedule, steps=setup.steps, steps_per_epoch=setup.steps_per_epoch
        )
        return setup

    return fit(
        config,
        run,
        build,
        tag=tag,
        overwrite=overwrite,
        quiet=quiet,
        go_on=go_on,
        processes=processes,
        observers=observers,
    )


def fit(
    config: RunConfig,
    run: Path,
    build: Callable[..., Setup],
    *,
    tag: str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    go_on: str | None = None,
    processes: Processes = ALONE,
    observers: Sequence[Observer] = (),
) -> Summary:
    """Train the objects that `build` returns, and write the run directory `run`.

    If several processes train the run, each of them calls this function. The first process reads
    checkpoints, writes files and reports the progress. The directory is locked against other runs
    during the call. If the run replaces an earlier one, the checkpoints of the earlier run stay in
    `replaced/` until the new run has saved one.

    Args:
        config: The settings of the loop.
        run: The run directory.
        build: Builds the objects of the run. It is called with the settings, the device, the fp32
            weights of the checkpoint to resume from (None if there is none, or if they are in
            parts), and `new`, whether the run starts from the beginning.
        tag: See `halfstep.train`, as for the other arguments and the result.
        overwrite: See there.
        quiet: See there.
        go_on: Its `resume`.
        processes: The processes that train together.
        observers: See there.

    Raises:
        UserError: If the config, the device or the directory is invalid; nothing was trained then.
            If memory does not suffice. If the summary, or a checkpoint whose results are in it,
            could not be written; the run then has no summary and can be resumed.
        KeyboardInterrupt: After Ctrl-C during training, on any process. The message says what is
            saved and how to resume.
        Stopped: After SIGTERM or SIGUSR1 during training, on any process, with the same message.
        FailedElsewhere: If another process raises one of these errors, or fails otherwise.
    """
    wall = Stopwatch()
    wall.start()
    device = processes.device or pick_device(config.device)
    own = [*processes.together(lambda: observing.named(config)), *observers]
    with _claimed(run, config, processes), on_threads(config.threads), in_use(device):
        start = processes.from_first(lambda: resume.find(run, go_on, config, processes.size))
        config = start.config if start is not None else config
        goes_further = start is not None and resume.is_another_length(start.checkpoint, config)
        ended = start is not None and not goes_further
        done = processes.from_first(lambda: run_directory.finished(run)) if ended else None
        if done is not None and go_on == run_directory.AUTO:
            return done
        if not (overwrite or (start is not None and start.here)):
            auto = go_on == run_directory.AUTO
            processes.from_first(lambda: run_directory.refuse_to_replace(run, config, auto=auto))
        whole = start is not None and start.checkpoint.parts is None
        weights = start.checkpoint.model if start and whole else None
        setup = processes.together(lambda: build(config, device, weights, new=start is None))
        kept = freed_memory_kept() if device.type == "cpu" else nullcontext()
        with setup.engine, kept, StopRequests() as requests:
            setup = replace(setup, task=requests.obeyed(setup.task))
            resumed_at = start.checkpoint.step if start else None
            training = Training(config, setup, run, resumed_at, wall=wall)
            watching = Observers(observing.of_run(training, own, quiet=quiet), processes)
            loop = assemble(training, watching)
            processes.from_first(lambda: _take_directory(run, config, setup, start))
            with watching.watching(training):
                try:
                    with (
                        out_of_memory_explained(config),
                        dead_workers_explained(),
                        loop.checkpoints.finished(),
                    ):
                        _epochs(loop, start)
                except KeyboardInterrupt:
                    raise KeyboardInterrupt(ending.what_is_left(training)) from None
                except Asked as asked:
                    with loop.checkpoints.finished():
                        loop.checkpoints.save_if_sound()
                    ending.leave(training, asked.number)
                summary = ending.summary(training, watching, tag)
        unsaved = loop.checkpoints.unsaved
        processes.from_first(lambda: ending.declare_over(run, summary, unsaved))
    return summary


@contextmanager
def _claimed(run: Path, config: RunConfig, processes: Processes) -> Iterator[None]:
    """Lock the run directory, on the first process, against other runs while the block runs."""
    # The locks of a lost node remain until the file server notices, so a restarted run waits.
    patience = config.distributed.timeout / 2 if distributed.restarts() else 0.0
    with ExitStack() as stack:

        def claim() -> None:
            stack.enter_context(run_directory.claimed(run, patience=patience))

        processes.from_first(claim)
        yield


def _take_directory(run: Path, config: RunConfig, setup: Setup, start: Start | None) -> None:
    goes_on = start is not None and start.here
    environment = {**describe(setup.device), **setup.processes.describe()}
    run_directory.prepare(run, config, environment, goes_on=goes_on)
    if start is not None:
        with run_directory.explained(run), checkpoint.explained(start.file):
            resume.tidy(run, start)


def assemble(training: Training, observers: Observers) -> Loop:
    """Return the objects of the training loop, for a run that was set up."""
    setup = training.setup
    return Loop(
        training,
        observers,
        MicroBatches(
            setup.engine,
            training.config,
            training.progress,
            setup.task,
            setup.processes,
            setup.compiled_for,
            captured=_is_captured(training, observers),
        ),
        CheckpointWriter(training, observers),
    )


def _is_captured(training: Training, observers: Observers) -> bool:
    """Tell whether steps are replayed.

    Raises:
        UserError: If an observer acts between the backward and the step.
    """
    for hook in ("veto", "before_step"):
        if training.config.graph and observers.has(hook):
            raise UserError(
                "graph is true, so that forward, backward and step are one replay, but an observer "
                f"has the hook {hook}, which is called before the step; leave the observer out, or "
                "write graph=false"
            )
    return training.config.graph


def _epochs(loop: Loop, start: Start | None) -> None:
    training, observers = loop.training, loop.observers
    config, progress = training.config, training.progress
    if start is not None:
        with checkpoint.explained(start.file), out_of_memory_explained(config):
            saving.pick_up(training, observers, start.checkpoint, start.file.parent)
            progress.note = observers.reason_to_end()
            if _is_over(training) and progress.final is None:
                raise ValueError("the run is over and was never validated")
    elif config.on_nonfinite == "rollback":
        loop.checkpoints.save()  # so that a rollback is possible from the first step on
    while not _is_over(training):
        training.stopwatch.start()
        try:
            train_epoch(loop)
        except LossScaleCollapse as error:
            progress.stop("collapsed", str(error))
        finally:
            training.stopwatch.stop()
            progress.train_seconds = training.stopwatch.seconds
        if progress.status != "finished":
            return
        _finish_epoch(loop)
    assert progress.final is not None
    if not math.isfinite(progress.final.loss):
        progress.stop(
            "nonfinite", f"the validation loss after the last epoch is {progress.final.loss}"
        )


def _is_over(training: Training) -> bool:
    """Tell whether a run is over; it is between two epochs, or was just resumed within one."""
    config, progress = training.config, training.progress
    at_an_end = progress.batch == 0 and (training.all_steps_done or progress.note is not None)
    return progress.epochs >= config.epochs or at_an_end or progress.status != "finished"


def _finish_epoch(loop: Loop) -> None:
    training, observers = loop.training, loop.observers
    setup, progress = training.setup, training.progress
    epoch, due = progress.epoch, training.validation_due
    names: list[Which] = []
    confusion: torch.Tensor | None = None
    seen = observers.figures("epoch_done")
    if seen:
        observers.record("probe", {"epoch": epoch, "step": training.step, **seen})
    if due:
        figures = validate(setup)
        setup.schedules.per_epoch(figures.scalars())
        observers.record("val", {"epoch": epoch, "step": training.step, **figures.scalars()})
        observers.call("validated", figures)
        progress.final = Score.of(figures, epoch)
        names.append("last")
        monitor, best = setup.task.monitor, progress.best
        value = progress.final.figures()[monitor.name]
        if monitor.is_better(value, best.figures()[monitor.name] if best else None):
            progress.best = progress.final
            names.append("best")
            confusion = figures.confusion
    progress.note = observers.reason_to_end()
    progress.epochs, progress.batch = epoch, 0
    loop.checkpoints.save_if_sound(*names, validated=due, confusion=confusion)
