"""When and how a run is saved, and how it is picked up again: everything but its files' format."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from halfstep.train.run import metrics, restore
from halfstep.train.store import parts, random_state, replaced, rotation
from halfstep.train.store.checkpoint import Checkpoint, Rank

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from halfstep.train.run.observer import Observers
    from halfstep.train.run.training import Training
    from halfstep.train.store.checkpoint import Which


class CheckpointWriter:
    """Writes the checkpoints of one run, whose observers may have a state in them, or a veto.

    Attributes:
        unsaved: Names of checkpoints that are not of the validation that they should be of, as that
            could not be written; known to the first process.
    """

    def __init__(self, training: Training, observers: Observers) -> None:
        self._training = training
        self._observers = observers
        self.unsaved: set[Which] = set()

    def save_if_sound(
        self, *names: Which, validated: bool = False, confusion: torch.Tensor | None = None
    ) -> None:
        """Write a checkpoint, unless an observer has a veto.

        Args:
            names: What else it is from now on.
            validated: Whether the newest validation is of these weights.
            confusion: Counts of that validation, if it is the best; see `metrics.write_tables`.
        """
        if not self._observers.any("veto_checkpoint"):
            self.save(*names, validated=validated, confusion=confusion)

    def save(
        self, *names: Which, validated: bool = False, confusion: torch.Tensor | None = None
    ) -> bool:
        """Write a checkpoint of the current state, between two micro-batches.

        Of several processes every one calls it, and the first one writes; where they share the
        model, each writes its part before that.

        A resume goes on from the newest checkpoint. So what belongs to one is written before it,
        and none is written while the best validation so far is in none: it has to be made again.
        See `save_if_sound` for the arguments.

        Returns:
            Whether this process has written it.
        """
        training = self._training
        running = training.stopwatch.running
        training.stopwatch.stop()
        training.progress.train_seconds = training.stopwatch.seconds
        training.progress.wall_seconds = training.wall.seconds
        written = self._write(names, confusion, validated=validated)
        self._observers.call("after_pause")
        if running:
            training.stopwatch.start()
        if written:
            self.unsaved.difference_update(names)
        elif training.processes.is_first:
            if "best" in names and "best" not in self.unsaved:
                rotation.warn(
                    f"the best validation so far, of epoch {training.progress.epochs}, could not "
                    "be saved; no other checkpoint replaces it until a better one is saved, so "
                    "--resume auto repeats that epoch"
                )
            self.unsaved.update(names)
        return written

    def _write(
        self, names: tuple[Which, ...], confusion: torch.Tensor | None, *, validated: bool
    ) -> bool:
        training = self._training
        processes, run = training.processes, training.run
        own: Rank = {"rng": random_state.capture(), "observers": self._observers.state_dict()}
        each = processes.gather(own)
        if processes.any("best" in self.unsaved and "best" not in names):
            return False
        try:
            tensors = self._tensors()
            self._observers.call("before_checkpoint")
            if processes.is_first and confusion is not None:
                metrics.write_tables(run, confusion, training.setup.data.classes)
        except OSError as error:
            if processes.is_first:
                rotation.give_up(run, training.step, error)
            return False
        if not processes.is_first:
            return False
        state = self._checkpoint(tensors, each, validated=validated)
        written = rotation.save(run, state, keep=training.config.checkpoints.keep, names=names)
        if written:
            with suppress(OSError):
                replaced.let_go(run)
        return written

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
