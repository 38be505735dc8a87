"""Saves the state of a run and loads it again; `store/checkpoint.py` defines the file format."""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from halfstep import caller, step_observer
from halfstep.train.run import restore
from halfstep.train.store import background, parts, random_state, replaced, rotation
from halfstep.train.store.background import Background
from halfstep.train.store.checkpoint import Checkpoint, Rank
from halfstep.train.store.snapshot import Copies
from halfstep.train.task import metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import torch

    from halfstep.train.run.observer import Observers
    from halfstep.train.run.training import Training
    from halfstep.train.store.checkpoint import Which


class _Outcome(NamedTuple):
    """The result of writing a checkpoint.

    Attributes:
        names: Names that the checkpoint was to get, besides that of its step.
        epochs: Number of finished epochs at the checkpoint.
        written: Whether the checkpoint was written and has all its names.
        warnings: Lines to warn with.
    """

    names: tuple[Which, ...]
    epochs: int
    written: bool
    warnings: Sequence[str] = ()


class CheckpointWriter:
    """Writes the checkpoints of one run. Observers may add their state, or veto a checkpoint.

    A large checkpoint is copied and then written in the background, one at a time. `finish` waits
    for it and handles its outcome. It is called before anything that depends on the outcome: the
    next checkpoint and the end of the run.

    Attributes:
        unsaved: Names of checkpoints that are outdated, because the checkpoint of a newer
            validation could not be written under that name; only set on the first process.
    """

    def __init__(self, training: Training, observers: Observers) -> None:
        self._training = training
        self._observers = observers
        self._copies = Copies()
        self._writing: Background[_Outcome] | None = None
        self.unsaved: set[Which] = set()

    def save_if_sound(
        self, *names: Which, validated: bool = False, confusion: torch.Tensor | None = None
    ) -> None:
        """Save a checkpoint, unless an observer vetoes it.

        Args:
            names: Names of the checkpoint, "last" or "best", besides that of its step.
            validated: Whether the newest validation measured the current weights.
            confusion: Confusion matrix of that validation, if it is the best so far; see
                `metrics.write_tables`.
        """
        if not self._observers.any("veto_checkpoint"):
            self.save(*names, validated=validated, confusion=confusion)

    def save(
        self, *names: Which, validated: bool = False, confusion: torch.Tensor | None = None
    ) -> None:
        """Save a checkpoint of the current state, between two micro-batches.

        Every process calls this, and the first one writes the file. If the processes share the
        model (FSDP2), each process writes its part before that, not in the background.

        A run resumes from its newest checkpoint. So files that belong to a checkpoint are written
        before it. And while the best validation so far could not be saved, no later checkpoint is
        written, so that a resumed run repeats that validation. See `save_if_sound` for the
        arguments.
        """
        training = self._training
        running = training.stopwatch.running
        training.stopwatch.stop()
        self.finish()
        training.progress.train_seconds = training.stopwatch.seconds
        training.progress.wall_seconds = training.wall.seconds
        state = self._state(names, confusion, validated=validated)
        if state is not None:
            self._write(state, names)
        elif training.processes.is_first:
            self._settle(_Outcome(names, training.progress.epochs, written=False))
        self._observers.call("after_pause")
        if running:
            training.stopwatch.start()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, and warn if it could not be written.

        Raises:
            Exception: The error that ended the writing, unless it is an OSError: that only warns.
        """
        if self._writing is not None:
            background.wait()  # After a Ctrl-C here, `_writing` is still set for the next call.
            writing, self._writing = self._writing, None
            self._settle(writing.result())

    @contextmanager
    def finished(self) -> Iterator[None]:
        """Call `finish` at the end of the block, also after an exception."""
        try:
            yield
        finally:
            self.finish()

    def finish_if_done(self) -> None:
        """Call `finish` if the background thread has finished writing."""
        if self._writing is not None and self._writing.done:
            self.finish()

    def _write(self, state: Checkpoint, names: tuple[Which, ...]) -> None:
        with step_observer.active.aside():
            copied = self._copies.of(state)
        if copied is None:
            self._settle(self._written(state, names))
        else:
            self._writing = Background(partial(self._written, copied, names))

    def _written(self, state: Checkpoint, names: tuple[Which, ...]) -> _Outcome:
        """Write a checkpoint and remove obsolete files; may run in the background thread."""
        run, keep = self._training.run, self._training.config.checkpoints.keep
        messages: list[str] = []
        written = rotation.save(run, state, keep=keep, names=names, say=messages.append)
        if written:
            with suppress(OSError):
                replaced.let_go(run)
        return _Outcome(names, state.epoch, written, messages)

    def _settle(self, outcome: _Outcome) -> None:
        for line in outcome.warnings:
            rotation.warn(line)
        if outcome.written:
            self.unsaved.difference_update(outcome.names)
            return
        if "best" in outcome.names and "best" not in self.unsaved:
            rotation.warn(
                f"best.pt of epoch {outcome.epochs} could not be saved; until a better best.pt is "
                "saved, no newer checkpoint is written, so "
                f"{caller.setting(resume='auto')} repeats that epoch"
            )
        self.unsaved.update(outcome.names)

    def _state(
        self, names: tuple[Which, ...], confusion: torch.Tensor | None, *, validated: bool
    ) -> Checkpoint | None:
        """Return the checkpoint to write, after writing the files that must exist before it.

        Returns:
            The checkpoint on the first process. None on the other processes, which only help to
            build it; and None on all if it must not be written, or if a file before it failed.
        """
        training = self._training
        processes, run = training.processes, training.run
        own: Rank = {"rng": random_state.capture(), "observers": self._observers.state_dict()}
        gathered = processes.gather(own)
        if processes.any("best" in self.unsaved and "best" not in names):
            return None
        try:
            tensors = self._tensors()
            self._observers.call("before_checkpoint")
            if processes.is_first and confusion is not None:
                metrics.write_tables(run, confusion, training.setup.task.data.classes)
        except OSError as error:
            if processes.is_first:
                rotation.give_up(run, training.step, error, rotation.warn)
            return None
        if not processes.is_first:
            return None
        return self._checkpoint(tensors, gathered, validated=validated)

    def _tensors(self) -> dict[str, Any]:
        """Return the checkpoint fields of weights and engine, or write parts and refer to them."""
        training = self._training
        engine, averaged = training.setup.engine, training.config.average is not None
        if training.setup.model_is_shared:
            folder = training.run / "checkpoints"
            written = parts.write(
                folder, training.step, engine, training.processes, averaged=averaged
            )
            return {"model": {}, "averaged": None, "engine": {}, "parts": written}
        return {
            "model": engine.bare_model.state_dict(),
            "averaged": engine.averaged_state_dict() if averaged else None,
            "engine": engine.state_dict(),
        }

    def _checkpoint(
        self, tensors: dict[str, Any], ranks: list[Rank], *, validated: bool
    ) -> Checkpoint:
        training = self._training
        progress, final = training.progress, training.progress.final
        own, *others = ranks
        return Checkpoint(
            **tensors,
            schedule=training.setup.schedules.state_dict(),
            epoch=progress.epochs,
            batch=progress.batch,
            step=training.step,
            validated=validated,
            loss=final.loss if final else math.nan,
            accuracy=final.accuracy if final and final.accuracy is not None else math.nan,
            classes=tuple(training.setup.task.data.classes),
            preprocessing=training.setup.task.data.preprocessing(),
            rng=own["rng"],
            progress=progress.state_dict(),
            config=training.config.model_dump(mode="json"),
            observers=own["observers"],
            others=others,
        )


def pick_up(training: Training, observers: Observers, stored: Checkpoint, folder: Path) -> None:
    """Load a checkpoint, whose file is in `folder`, into a run that was just set up."""
    restore.take_over(training.setup, stored, folder)
    training.progress.load_state_dict(stored.progress)
    seconds, of_all = training.progress.train_seconds, training.progress.wall_seconds
    training.stopwatch.add(seconds)
    training.wall.add(max(seconds, of_all))  # Checkpoints of 0.1.0 have no wall_seconds.
    ranks = stored.ranks
    observers.load([rank["observers"] for rank in ranks])
    # Last, because the calls above may draw random numbers. A rank that is not in the checkpoint
    # keeps the random state of its set-up.
    if training.processes.rank < len(ranks):
        random_state.restore(ranks[training.processes.rank]["rng"])
