"""Loads weights, optimizer and schedule from a checkpoint, for a resume or a rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.engine import load_sharded
from halfstep.engine.checkpoints.sharded import load_whole
from halfstep.errors import UserError
from halfstep.train.store import rotation

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.train.build.setup import Setup
    from halfstep.train.run.training import Training
    from halfstep.train.store.checkpoint import Checkpoint


def take_over(setup: Setup, stored: Checkpoint, folder: Path) -> None:
    """Load a checkpoint, whose file is in `folder`, into engine and schedule.

    If the checkpoint is in parts, each process loads its own part.
    """
    if stored.parts is None:
        load_whole({"models": [stored.model], "engine": stored.engine}, setup.engine)
    else:
        load_sharded(folder / stored.parts["directory"], setup.engine)
    setup.schedules.load_state_dict(stored.schedule)


def roll_back(training: Training) -> None:
    """Load weights, optimizer and schedule from the newest checkpoint.

    The position in the data does not change: the run continues with its next batch.
    """
    file, stored = training.processes.from_first(lambda: _newest(training.run))
    before = training.step
    take_over(training.setup, stored, file.parent)
    training.setup.engine.zero_grad()
    training.progress.dropped = before - training.setup.engine.steps
    training.progress.rollbacks += 1


def _newest(run: Path) -> tuple[Path, Checkpoint]:
    newest = rotation.newest_whole(run)
    if newest is None:
        raise UserError(f"no checkpoint to go back to is left in {str(run)!r}")
    return newest
