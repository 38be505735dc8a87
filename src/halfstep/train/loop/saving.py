"""When and how a run is saved, and how it is picked up again: everything but its files' format."""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from halfstep.train.run import metrics, restore
from halfstep.train.store import background, parts, random_state, replaced, rotation
from halfstep.train.store.background import Background
from halfstep.train.store.checkpoint import Checkpoint, Rank
from halfstep.train.store.snapshot import Copies

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import torch

    from halfstep.train.run.observer import Observers
    from halfstep.train.run.training import Training
    from halfstep.train.store.checkpoint import Which


class _Outcome(NamedTuple):
    """What became of a checkpoint, made after so many epochs: whether it has all its names."""

    names: tuple[Which, ...]
    epochs: int
    written: bool
    warnings: Sequence[str] = ()


class CheckpointWriter:
    """Writes the checkpoints of one run, whose observers may have a state in them, or a veto.

    A large one is copied and written in the background, one at a time. Its outcome is known by
    `finish`, which comes before anything that depends on it: the next checkpoint, and the end.

    Attributes:
        unsaved: Names of checkpoints that are not of the validation that they should be of, as that
            could not be written; known to the first process.
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
        """Save a checkpoint, unless an observer has a veto.

        Args:
            names: What else it is from now on.
            validated: Whether the newest validation is of these weights.
            confusion: Counts of that validation, if it is the best; see `metrics.write_tables`.
        """
        if not self._observers.any("veto_checkpoint"):
            self.save(*names, validated=validated, confusion=confusion)

    def save(
        self, *names: Which, validated: bool = False, confusion: torch.Tensor | None = None
    ) -> None:
        """Save a checkpoint of the current state, between two micro-batches.

        Of several processes every one calls it, and the first one writes; where they share the
        model, each writes its part before that, and not in the background.

        A resume goes on from the newest checkpoint. So what belongs to one is written before it,
        and none is written while the best validation so far is in none: it has to be made again.
        See `save_if_sound` for the arguments.
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
        """Wait for the checkpoint that is being written, and warn if it could not be.

        Raises:
            Exception: What its writing raised, other than for the disk.
        """
        if self._writing is not None:
            background.wait()  # A Ctrl-C here leaves it to be waited for again.
            writing, self._writing = self._writing, None
            self._settle(writing.result())

    @contextmanager
    def finished(self) -> Iterator[None]:
        """Do the same at the end of a block, however that ends."""
        try:
            yield
        finally:
            self.finish()

    def finish_if_done(self) -> None:
        """Do the same if there is nothing to wait for."""
        if self._writing is not None and self._writing.done:
            self.finish()

    def _write(self, state: Checkpoint, names: tuple[Which, ...]) -> None:
        copied = self._copies.of(state)
        if copied is None:
            self._settle(self._written(state, names))
        else:
            self._writing = Background(partial(self._written, copied, names))

    def _written(self, state: Checkpoint, names: tuple[Which, ...]) -> _Outcome:
        """Write a checkpoint, and what follows from it on the disk; in whichever thread."""
        run, keep = self._training.run, self._training.config.checkpoints.keep
        said: list[str] = []
        written = rotation.save(run, state, keep=keep, names=names, say=said.append)
        if written:
            with suppress(OSError):
                replaced.let_go(run)
        return _Outcome(names, state.epoch, written, said)

    def _settle(self, outcome: _Outcome) -> None:
        for line in outcome.warnings:
            rotation.warn(line)
        if outcome.written:
            self.unsaved.difference_update(outcome.names)
            return
        if "best" in outcome.names and "best" not in self.unsaved:
            rotation.warn(
                f"best.pt of epoch {outcome.epochs} could not be saved; until a better best.pt is "
                "saved, no newer checkpoint is written, so --resume auto repeats that epoch"
            )
        self.unsaved.update(outcome.names)

    def _state(
        self, names: tuple[Which, ...], confusion: torch.Tensor | None, *, validated: bool
    ) -> Checkpoint | None:
        """Return what to write, after all that comes before it on the disk; or None, to not write.

        It is of the first process; the others help to make it, and have nothing to write.
        """
        training = self._training
        processes, run = training.processes, training.run
        own: Rank = {"rng": random_state.capture(), "observers": self._observers.state_dict()}
        each = processes.gather(own)
        if processes.any("best" in self.unsaved and "best" not in names):
            return None
        try:
            tensors = self._tensors()
            self._observers.call("before_checkpoint")
            if processes.is_first and confusion is not None:
                metrics.write_tables(run, confusion, training.setup.data.classes)
        except OSError as error:
            if processes.is_first:
                rotation.give_up(run, training.step, error, rotation.warn)
            return None
        if not processes.is_first:
            return None
        return self._checkpoint(tensors, each, validated=validated)

    def _tensors(self) -> dict[str, Any]:
        """Return what a checkpoint has of weights and engine, or where it was written in parts."""
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
            accuracy=final.accuracy if final else math.nan,
            classes=tuple(training.setup.data.classes),
            preprocessing=training.setup.preprocessing(),
            rng=own["rng"],
            progress=progress.state_dict(),
            config=training.config.model_dump(mode="json"),
            observers=own["observers"],
            others=others,
        )


def pick_up(training: Training, observers: Observers, stored: Checkpoint, folder: Path) -> None:
    """Put a run that was just set up where a checkpoint in `folder` was made."""
    restore.take_over(training.setup, stored, folder)
    training.progress.load_state_dict(stored.progress)
    seconds, of_all = training.progress.train_seconds, training.progress.wall_seconds
    training.stopwatch.add(seconds)
    training.wall.add(max(seconds, of_all))  # Checkpoints of 0.1.0 have the first alone.
    ranks = stored.ranks
    observers.load([each["observers"] for each in ranks])
    # Last, as building draws random numbers. New processes keep those that they were set up with.
    if training.processes.rank < len(ranks):
        random_state.restore(ranks[training.processes.rank]["rng"])
