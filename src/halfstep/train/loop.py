"""The run: epochs of training and validation under a recipe, from a config to a run directory."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.nn import functional

from halfstep.engine import LossScaleCollapse, StepResult
from halfstep.train import checkpoint, run_directory
from halfstep.train.environment import describe, pick_device
from halfstep.train.memory import PeakMemory
from halfstep.train.meter import Meter
from halfstep.train.run_directory import Status, Summary
from halfstep.train.setup import Setup, set_up
from halfstep.train.tracking import Tracker
from halfstep.train.validate import Figures, validate

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.train.config import Config


def train(
    config: Config,
    run: Path,
    *,
    tag: str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Summary:
    """Train what `config` says and leave the run directory `run`.

    Args:
        config: What to train, and how.
        run: The directory; made if need be. What an earlier run left in it goes.
        tag: What the user called the run, for the summary.
        overwrite: Whether a finished run of another config may be replaced.
        quiet: Whether to draw no progress bar.

    Returns:
        The summary, as `summary.json` has it. A run that went wrong numerically has one too.

    Raises:
        UserError: If anything about the config, the device or the directory is wrong; nothing was
            trained then.
        KeyboardInterrupt: With a message that says what is left, after a Ctrl-C in training.
    """
    began = time.perf_counter()
    device = pick_device(config.device)
    setup = set_up(config, device)
    with setup.engine:
        if not overwrite:
            run_directory.refuse_another_run(run, config)
        run_directory.prepare(run, config, describe(device))
        progress = _Progress()
        title = f"{config.name} {setup.engine.recipe.name} seed {config.seed}"
        with Tracker(run, steps=setup.steps, title=title, quiet=quiet) as tracker:
            with PeakMemory(device) as memory:
                try:
                    _epochs(config, setup, run, progress, tracker, memory)
                except KeyboardInterrupt:
                    raise KeyboardInterrupt(_what_is_left(run, progress)) from None
            summary = _summary(config, setup, progress, memory, tag, time.perf_counter() - began)
    run_directory.write_summary(run, summary)
    return summary


@dataclass(slots=True)
class _Progress:
    """How far a run has come."""

    status: Status = "finished"
    error: str | None = None
    epochs: int = 0
    images: int = 0
    train_seconds: float = 0.0
    first_nonfinite_step: int | None = None
    best: Figures | None = None
    best_epoch: int | None = None
    final: Figures | None = None


def _epochs(
    config: Config,
    setup: Setup,
    run: Path,
    progress: _Progress,
    tracker: Tracker,
    memory: PeakMemory,
) -> None:
    for epoch in range(1, config.epochs + 1):
        started = time.perf_counter()
        try:
            _one_epoch(config, setup, epoch, progress, tracker, memory)
        except LossScaleCollapse as error:
            progress.status, progress.error = "collapsed", " ".join(str(error).split())
        finally:
            progress.train_seconds += time.perf_counter() - started
        if progress.status != "finished":
            return
        _finish_epoch(setup, run, epoch, progress, tracker)
    assert progress.final is not None
    if not math.isfinite(progress.final.loss):
        progress.status = "nonfinite"
        progress.error = f"the validation loss after the last epoch is {progress.final.loss}"


def _one_epoch(
    config: Config,
    setup: Setup,
    epoch: int,
    progress: _Progress,
    tracker: Tracker,
    memory: PeakMemory,
) -> None:
    engine = setup.engine
    # Where a step is one batch, nothing is uneven, and weighting would only cost exactness.
    weighted = engine.accumulate > 1
    meter = Meter(len(setup.classes), setup.device)
    result: StepResult | None = None
    unread = False
    for images, labels in engine.batches(setup.on_device(setup.train)):
        with engine.autocast():
            logits = engine.model(images)
            loss = functional.cross_entropy(logits, labels)
        engine.backward(loss, samples=len(labels) if weighted else None)
        result = engine.step()
        meter.add(loss, logits, labels)
        progress.images += len(labels)
        unread = True
        if not result.closed:
            continue
        meter.close(engine.steps, result)
        if engine.steps % config.log_every == 0:
            unread = False
            if not _log(setup, epoch, progress, tracker, memory, meter, result):
                return
    if unread and result is not None:
        _log(setup, epoch, progress, tracker, memory, meter, result)
    engine.flush()


def _log(
    setup: Setup,
    epoch: int,
    progress: _Progress,
    tracker: Tracker,
    memory: PeakMemory,
    meter: Meter,
    result: StepResult,
) -> bool:
    """Read and record the interval; return whether training can go on."""
    engine = setup.engine
    interval = meter.read()
    figures = {
        "step": engine.steps,
        "epoch": epoch,
        "loss": interval.loss,
        "accuracy": interval.accuracy,
        "lr": float(engine.optimizer.param_groups[0]["lr"]),
        "loss_scale": result.loss_scale,
        "grad_norm": result.grad_norm,
        "images_per_second": interval.images_per_second,
    }
    tracker.train(figures, memory.peak())
    if progress.first_nonfinite_step is None:
        progress.first_nonfinite_step = interval.nonfinite_step
    if interval.poisoned_step is None:
        return True
    progress.status = "nonfinite"
    progress.error = (
        f"the loss was not finite at step {interval.poisoned_step}, and the weights were updated; "
        "try a recipe that scales the loss, or a lower optimizer.lr"
    )
    return False


def _finish_epoch(
    setup: Setup, run: Path, epoch: int, progress: _Progress, tracker: Tracker
) -> None:
    engine = setup.engine
    figures = validate(setup)
    tracker.validation(
        {
            "epoch": epoch,
            "step": engine.steps,
            "loss": figures.loss,
            "accuracy": figures.accuracy,
        }
    )
    state = checkpoint.Checkpoint(
        model=engine.model.state_dict(),
        engine=engine.state_dict(),
        epoch=epoch,
        step=engine.steps,
        loss=figures.loss,
        accuracy=figures.accuracy,
    )
    if progress.best is None or figures.accuracy > progress.best.accuracy:
        checkpoint.save(checkpoint.path(run, "best"), state)
        progress.best, progress.best_epoch = figures, epoch
    checkpoint.save(checkpoint.path(run, "last"), state)
    progress.final, progress.epochs = figures, epoch


def _summary(
    config: Config,
    setup: Setup,
    progress: _Progress,
    memory: PeakMemory,
    tag: str | None,
    wall_seconds: float,
) -> Summary:
    best, final = progress.best, progress.final
    return Summary(
        status=progress.status,
        config=config.name,
        tag=tag,
        recipe=setup.engine.recipe.name,
        seed=config.seed,
        best_accuracy=best.accuracy if best else None,
        best_epoch=progress.best_epoch,
        final_accuracy=final.accuracy if final else None,
        final_val_loss=final.loss if final else None,
        train_seconds=progress.train_seconds,
        wall_seconds=wall_seconds,
        images_per_second=progress.images / progress.train_seconds,
        peak_memory_bytes=memory.peak(),
        peak_memory_kind=memory.kind,
        skipped_steps=setup.engine.skipped,
        first_nonfinite_step=progress.first_nonfinite_step,
        steps=setup.engine.steps,
        epochs=progress.epochs,
        device=str(setup.device),
        error=progress.error,
    )


def _what_is_left(run: Path, progress: _Progress) -> str:
    kept = (
        f"checkpoints/last.pt holds epoch {progress.epochs}"
        if progress.epochs
        else "no epoch was finished"
    )
    return f"interrupted in epoch {progress.epochs + 1}; the run lies in {str(run)!r}; {kept}"
