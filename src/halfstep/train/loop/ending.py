"""Ends a run: writes its summary or, after a signal, raises an error that says how to resume."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from halfstep import caller
from halfstep.errors import UserError
from halfstep.train.run.signals import Stopped
from halfstep.train.store import checkpoint, rotation, run_directory
from halfstep.train.store.run_directory import Summary

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from halfstep.train.run.observer import Observers
    from halfstep.train.run.training import Training
    from halfstep.train.store.checkpoint import Which


def leave(training: Training, number: int) -> None:
    """Raise the exception that ends a run after a signal, once its checkpoint is written.

    Raises:
        KeyboardInterrupt: For SIGINT.
        Stopped: For any other signal.
    """
    line = what_is_left(training)
    if number == signal.SIGINT:
        raise KeyboardInterrupt(line)
    raise Stopped(number, line)


def declare_over(run: Path, summary: Summary, unsaved: Collection[Which]) -> None:
    """Write the summary, which marks the run as over, unless a checkpoint is missing.

    Args:
        run: The run directory.
        summary: The summary.
        unsaved: Names of checkpoints that could not be written; see `CheckpointWriter.unsaved`.

    Raises:
        UserError: If a checkpoint or the summary could not be written. The run is then not over,
            and can be resumed.
    """
    missing = [f"checkpoints/{name}.pt" for name in sorted(unsaved)]
    try:
        if not missing:
            run_directory.write_summary(run, summary)
            return
        reason = ""
    except OSError as error:
        missing, reason = ["summary.json"], f" ({error.strerror or error})"
    newest = rotation.newest_first(run)
    begins = "starts from the beginning, because nothing was saved"
    if newest:
        begins = f"continues from {newest[0].name}"
    ended = f"{summary.status}: {summary.error}; " if summary.error else ""
    raise UserError(
        f"{ended}the run in {str(run)!r} is not finished, because {' and '.join(missing)} could "
        f"not be written{reason}; make room and write {caller.setting(resume='auto')}, which "
        f"{begins}"
    )


def summary(training: Training, observers: Observers, tag: str | None) -> Summary:
    """Return the summary of a run that has ended."""
    config, setup, progress = training.config, training.setup, training.progress
    best, final = progress.best, progress.final
    seen = observers.figures("summary")
    scalers = setup.engine.loss_scales
    history = scalers[None].history if scalers else []
    fields = Summary.__dataclass_fields__
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
        wall_seconds=training.wall.seconds,
        best_metrics=best.figures() if best else {},
        final_metrics=final.figures() if final else {},
        monitor=setup.task.monitor.name,
        images_per_second=progress.images / max(progress.train_seconds, 1e-9),
        skipped_steps=setup.engine.skipped + progress.dropped,
        first_nonfinite_step=progress.first_nonfinite_step,
        steps=training.step,
        epochs=progress.epochs,
        device=str(setup.device),
        error=progress.error,
        note=progress.note,
        rehearsed=setup.engine.resolution.those("rehearsed"),
        loss_scales=[[change.step, change.scale] for change in history],
        checkpoint_bytes=_size(checkpoint.path(training.run, "last")),
        processes=training.processes.size,
        val_images=setup.task.data.val.images,
        **{name: value for name, value in seen.items() if name in fields},
        observed={name: value for name, value in seen.items() if name not in fields},
    )


def _size(file: Path) -> int | None:
    try:
        return checkpoint.size(file)
    except OSError:
        return None


def what_is_left(training: Training) -> str:
    """Return a line that says what an interrupted run has saved, and how to resume it."""
    run = training.run
    epoch = checkpoint.epoch_of(checkpoint.path(run, "last"))
    if epoch is not None:
        kept = f"checkpoints/last.pt holds epoch {epoch}"
    elif training.progress.epochs == 0:
        kept = "no epoch was finished"
    else:
        kept = "no finished epoch was saved"
    newest = rotation.newest_first(run)
    again = caller.setting(resume="auto")
    on = f"; {again} continues from {newest[0].name}" if newest else ""
    interrupted = training.progress.epoch
    return f"interrupted in epoch {interrupted}; the run is in {str(run)!r}; {kept}{on}"
