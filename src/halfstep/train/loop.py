"""The run: epochs of training and validation under a recipe, from a config to a run directory.

What happens within an epoch is in `epoch.py`; here is what comes before, between and after.
"""

from __future__ import annotations

import math
import signal
import time
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from statistics import mean
from typing import TYPE_CHECKING

from halfstep.engine import LossScaleCollapse
from halfstep.errors import UserError
from halfstep.train import (
    checkpoint,
    distributed,
    early_stopping,
    extend,
    resume,
    rotation,
    run_directory,
    schedules,
    sinks,
)
from halfstep.train.data.loader import dead_workers_explained
from halfstep.train.diagnosis import diagnosed
from halfstep.train.energy import Energy
from halfstep.train.environment import describe, pick_device
from halfstep.train.epoch import save_if_sound, train_epoch
from halfstep.train.memory import PeakMemory
from halfstep.train.meter import Meter
from halfstep.train.microbatch import MicroBatches, out_of_memory_explained
from halfstep.train.nonfinite import NonFinite
from halfstep.train.probes import Probes
from halfstep.train.processes import ALONE
from halfstep.train.progress import Progress, Score
from halfstep.train.run_directory import Summary
from halfstep.train.setup import Setup, set_up
from halfstep.train.signals import Asked, Stopped, StopRequests
from halfstep.train.step_times import StepTimes
from halfstep.train.stopwatch import Stopwatch
from halfstep.train.tracking import NoTracker, Tracker
from halfstep.train.training import Training, pick_up
from halfstep.train.validate import validate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

    from halfstep.train.checkpoint import Which
    from halfstep.train.config import Config
    from halfstep.train.processes import Processes
    from halfstep.train.resume import Start


def train(
    config: Config,
    run: Path,
    *,
    tag: str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    go_on: str | None = None,
    processes: Processes = ALONE,
) -> Summary:
    """Train what `config` says and leave the run directory `run`.

    Of several processes each one calls this; the first one reads checkpoints, writes, and draws.

    Args:
        config: What to train, and how.
        run: The directory; made if need be. No other process may train in it meanwhile.
        tag: What the user called the run, for the summary.
        overwrite: Whether a run that is in the directory may be replaced. Its checkpoints stay in
            `replaced/` until the new run has one.
        quiet: Whether to draw no progress bar.
        go_on: Where to go on from: "auto" for the newest whole checkpoint in `run`, if there is
            any; or the path of a checkpoint or of a run directory.
        processes: Those that train together.

    Returns:
        The summary, as `summary.json` has it. A run that went wrong numerically has one too.

    Raises:
        UserError: If anything about the config, the device or the directory is wrong; nothing was
            trained then. If memory does not suffice. If what the summary would say could not be
            written; there is none then, and the run can go on.
        KeyboardInterrupt: With a message that says what is left, after a Ctrl-C in training.
        Stopped: The same, after a SIGTERM or SIGUSR1. Both after a signal to any process.
        FailedElsewhere: If another process raises one of these, or fails otherwise.
    """
    began = time.perf_counter()
    device = processes.device or pick_device(config.device)
    processes.together(lambda: sinks.require(config.tracking))
    with _claimed(run, config, processes):
        start = processes.from_first(lambda: resume.find(run, go_on, config, processes.size))
        goes_further = start is not None and extend.is_another_length(start.checkpoint, config)
        ended = start is not None and not goes_further
        done = processes.from_first(lambda: _summary_of_finished(run)) if ended else None
        if done is not None and go_on == resume.AUTO:
            return done
        if not (overwrite or (start is not None and start.here)):
            auto = go_on == resume.AUTO
            processes.from_first(lambda: run_directory.refuse_to_replace(run, config, auto=auto))
        setup = processes.together(lambda: _set_up(config, device, start, processes))
        with setup.engine:
            processes.from_first(lambda: _take_directory(run, config, setup, start))
            # Of a part of a run, or of one GPU of several, it would look like a saving.
            known = start is None and config.distributed.strategy != "dp"
            energy = Energy(device) if known else None
            with StopRequests() as requests, PeakMemory(device) as memory:
                setup = replace(setup, data=requests.obeyed(setup.data))
                with _tracker(run, config, setup, start, quiet=quiet) as tracker:
                    training = _assemble(config, setup, run, tracker, memory)
                    try:
                        since = start.checkpoint.step if start else 0
                        with (
                            diagnosed(training, since),
                            out_of_memory_explained(config),
                            dead_workers_explained(),
                        ):
                            _epochs(training, start)
                    except KeyboardInterrupt:
                        raise KeyboardInterrupt(_what_is_left(training)) from None
                    except Asked as asked:
                        _leave(training, asked.number)
                    finally:
                        training.nonfinite.close()
                summary = _summary(training, tag, time.perf_counter() - began, energy)
        processes.from_first(lambda: _declare_over(training, summary))
    return summary


@contextmanager
def _claimed(run: Path, config: Config, processes: Processes) -> Iterator[None]:
    """Let the first process keep all others out of the run directory."""
    # A node that is lost has its locks until the file server notices.
    patience = config.distributed.timeout / 2 if distributed.restarts() else 0.0
    with ExitStack() as stack:

        def claim() -> None:
            stack.enter_context(run_directory.claimed(run, patience=patience))

        processes.from_first(claim)
        yield


def _declare_over(training: Training, summary: Summary) -> None:
    """Write the summary, if the checkpoints hold what it says.

    Raises:
        UserError: If they do not, or if it cannot be written.
    """
    run = training.run
    missing = [f"checkpoints/{name}.pt" for name in sorted(training.unsaved)]
    try:
        if not missing:
            run_directory.write_summary(run, summary)
            return
        reason = ""
    except OSError as error:
        missing, reason = ["summary.json"], f" ({error.strerror or error})"
    newest = rotation.newest_first(run)
    begins = f"goes on from {newest[0].name}" if newest else "starts anew, as nothing was saved"
    ended = f"{summary.status}: {summary.error}; " if summary.error else ""
    raise UserError(
        f"{ended}the run in {str(run)!r} is not finished, as {' and '.join(missing)} could not be "
        f"written{reason}; make room and write --resume auto, which {begins}"
    )


def _summary_of_finished(run: Path) -> Summary | None:
    """Return the summary of a run that has come to its end, of which nothing is left to do."""
    found = run_directory.read_summary(run)
    same = found is not None and found.keys() == Summary.__dataclass_fields__.keys()
    return Summary(**found) if found and same and found["status"] == "finished" else None


def _set_up(
    config: Config, device: torch.device, start: Start | None, processes: Processes
) -> Setup:
    """Build what the config names, with the weights of a checkpoint if its file has them."""
    weights = start.checkpoint.model if start and start.checkpoint.parts is None else None
    setup = set_up(config, device, weights, processes, initial_weights=start is None)
    schedules.warn_of_endless_rise(
        config.schedule, steps=setup.steps, steps_per_epoch=setup.steps_per_epoch
    )
    return setup


def _take_directory(
    run: Path,
    config: Config,
    setup: Setup,
    start: Start | None,
) -> None:
    goes_on = start is not None and start.here
    environment = {**describe(setup.device), **setup.processes.describe()}
    run_directory.prepare(run, config, environment, goes_on=goes_on)
    if start is not None:
        with run_directory.explained(run), checkpoint.explained(start.file):
            resume.tidy(run, start)


def _tracker(
    run: Path, config: Config, setup: Setup, start: Start | None, *, quiet: bool
) -> Tracker | NoTracker:
    if not setup.processes.is_first:
        return NoTracker()
    return Tracker(
        run,
        steps=setup.steps,
        title=f"{config.name} {setup.engine.recipe.name} seed {config.seed}",
        quiet=quiet,
        names=config.tracking,
        settings=config.model_dump(mode="json"),
        resumed_at=start.checkpoint.step if start else None,
    )


def _assemble(
    config: Config,
    setup: Setup,
    run: Path,
    tracker: Tracker | NoTracker,
    memory: PeakMemory,
) -> Training:
    progress, stopwatch, processes = Progress(), Stopwatch(), setup.processes
    return Training(
        config=config,
        setup=setup,
        run=run,
        progress=progress,
        stopwatch=stopwatch,
        meter=Meter(setup.device, lambda: stopwatch.seconds, processes),
        step_times=StepTimes(setup.device, lambda: stopwatch.seconds),
        micro_batches=MicroBatches(setup.engine, config, progress, processes),
        nonfinite=NonFinite(setup.engine, config, progress, processes),
        tracker=tracker,
        memory=memory,
        probes=Probes(config, setup),
    )


def _epochs(training: Training, start: Start | None) -> None:
    config, progress = training.config, training.progress
    if start is not None:
        with checkpoint.explained(start.file), out_of_memory_explained(config):
            pick_up(training, start.checkpoint, start.file.parent)
            if _is_over(training) and progress.final is None:
                raise ValueError("the run is over and was never validated")
    elif config.on_nonfinite == "rollback":
        training.save()  # something to go back to, from the first step on
    while not _is_over(training):
        training.stopwatch.start()
        try:
            train_epoch(training)
        except LossScaleCollapse as error:
            progress.stop("collapsed", str(error))
        finally:
            training.stopwatch.stop()
            progress.train_seconds = training.stopwatch.seconds
        if progress.status != "finished":
            return
        _finish_epoch(training)
    assert progress.final is not None
    if not math.isfinite(progress.final.loss):
        progress.stop(
            "nonfinite", f"the validation loss after the last epoch is {progress.final.loss}"
        )


def _is_over(training: Training) -> bool:
    """Tell whether a run that stands between two epochs, or was picked up in one, is done."""
    config, progress = training.config, training.progress
    patience = config.early_stopping.patience if config.early_stopping else math.inf
    at_an_end = progress.batch == 0 and (training.all_steps_done or progress.waiting >= patience)
    return progress.epochs >= config.epochs or at_an_end or progress.status != "finished"


def _finish_epoch(training: Training) -> None:
    config, setup, progress = training.config, training.setup, training.progress
    epoch = progress.epoch
    names: list[Which] = []
    confusion: torch.Tensor | None = None
    with training.memory.paused() if config.probes else nullcontext():
        seen = training.probes.epoch_done()
    if seen:
        training.tracker.probe({"epoch": epoch, "step": training.step, **seen})
    # A run that was picked up behind the last step of its epoch has not seen that step.
    if "unchanged_share" in seen:
        progress.unchanged_shares.append(seen["unchanged_share"])
    due = epoch % config.val_every == 0 or epoch == config.epochs or training.all_steps_done
    if due:
        figures = validate(setup)
        setup.schedules.per_epoch(figures)
        training.tracker.validation(
            {"epoch": epoch, "step": training.step, **figures.scalars()}, figures.samples
        )
        progress.final = Score(figures.loss, figures.accuracy, epoch, figures.top5)
        names.append("last")
        if progress.best is None or figures.accuracy > progress.best.accuracy:
            progress.best = progress.final
            names.append("best")
            confusion = figures.confusion
        progress.note = early_stopping.look(config.early_stopping, progress, figures)
    progress.epochs, progress.batch = epoch, 0
    save_if_sound(training, *names, validated=due, confusion=confusion)


def _leave(training: Training, number: int) -> None:
    """Save, and end as the signal asks.

    Raises:
        KeyboardInterrupt: For SIGINT.
        Stopped: For any other.
    """
    training.save()
    line = _what_is_left(training)
    if number == signal.SIGINT:
        raise KeyboardInterrupt(line)
    raise Stopped(number, line)


def _summary(
    training: Training, tag: str | None, wall_seconds: float, energy: Energy | None
) -> Summary:
    config, setup, progress = training.config, training.setup, training.progress
    best, final = progress.best, progress.final
    return Summary(
        status=progress.status,
        config=config.name,
        tag=tag,
        recipe=setup.engine.recipe.name,
        seed=config.seed,
        best_accuracy=best.accuracy if best else None,
        best_epoch=best.epoch if best else None,
        final_accuracy=final.accuracy if final else None,
        final_val_loss=final.loss if final else None,
        best_accuracy_top5=best.top5 if best else None,
        final_accuracy_top5=final.top5 if final else None,
        train_seconds=progress.train_seconds,
        wall_seconds=wall_seconds,
        images_per_second=progress.images / max(progress.train_seconds, 1e-9),
        peak_memory_bytes=training.memory.peak(),
        peak_memory_kind=training.memory.kind,
        peak_memory_reserved_bytes=training.memory.peak_reserved(),
        step_seconds_median=training.step_times.quantile(0.5),
        step_seconds_p95=training.step_times.quantile(0.95),
        core_wait_share=training.step_times.cores.share,
        energy_joules=_of_all(training.processes, energy.joules() if energy else None),
        skipped_steps=setup.engine.skipped + progress.dropped,
        first_nonfinite_step=progress.first_nonfinite_step,
        steps=training.step,
        epochs=progress.epochs,
        device=str(setup.device),
        error=progress.error,
        note=progress.note,
        rehearsed=setup.engine.resolution.those("rehearsed"),
        loss_scales=_loss_scales(setup),
        checkpoint_bytes=_size(checkpoint.path(training.run, "last")),
        processes=training.processes.size,
        unchanged_share=mean(progress.unchanged_shares) if progress.unchanged_shares else None,
        **asdict(training.probes.findings),
    )


def _of_all(processes: Processes, mine: float | None) -> float | None:
    """Return the sum of what each process has; None if one does not know."""
    known, total = processes.sums([float(mine is not None), mine or 0.0])
    return total if known == processes.size else None


def _loss_scales(setup: Setup) -> list[list[float]]:
    """Return each change of the shared loss scale: after which step, and to what."""
    scalers = setup.engine.loss_scales
    history = scalers[None].history if scalers else []
    return [[change.step, change.scale] for change in history]


def _size(file: Path) -> int | None:
    try:
        return checkpoint.size(file)
    except OSError:
        return None


def _what_is_left(training: Training) -> str:
    run = training.run
    epoch = checkpoint.epoch_of(checkpoint.path(run, "last"))
    if epoch is not None:
        kept = f"checkpoints/last.pt holds epoch {epoch}"
    elif training.progress.epochs == 0:
        kept = "no epoch was finished"
    else:
        kept = "no finished epoch was saved"
    newest = rotation.newest_first(run)
    on = f"; --resume auto goes on from {newest[0].name}" if newest else ""
    interrupted = training.progress.epoch
    return f"interrupted in epoch {interrupted}; the run lies in {str(run)!r}; {kept}{on}"
