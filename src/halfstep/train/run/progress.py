"""How far a run has come: everything that is counted, and goes into its checkpoints."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from halfstep.train.store.run_directory import Status  # noqa: TC001  # pydantic reads it at run time


@dataclass(frozen=True, slots=True)
class Score:
    """A validation, and the epoch (from 1) that it came after; see `Figures` for the others."""

    loss: float
    accuracy: float
    epoch: int
    top5: float | None = None


@dataclass(slots=True)
class Progress:
    """How far a run has come.

    Attributes:
        epochs: Finished epochs; one that `max_steps` cuts short counts.
        batch: Batches done of the epoch after them.
        images: Training images seen.
        train_seconds: Time in training, over all processes that worked on the run.
        wall_seconds: Time from reading the data to the last checkpoint, over the same.
        dropped: Windows that were left out, or taken back, because of a loss that was not finite.
        dropped_in_a_row: How many the newest ones are.
        rollbacks: Times that the run went back to a checkpoint.
        pieces: How many pieces a batch is split into, for want of memory.
        first_nonfinite_step: Step whose loss was the first that was not finite.
        best: The best validation.
        final: The newest one.
        status: How the run stands; not part of a checkpoint.
        error: What ended it early, in one line; not part of a checkpoint.
        note: What ended it in good order before its last epoch; not part of a checkpoint.
    """

    epochs: int = 0
    batch: int = 0
    images: int = 0
    train_seconds: float = 0.0
    wall_seconds: float = 0.0
    dropped: int = 0
    dropped_in_a_row: int = 0
    rollbacks: int = 0
    pieces: int = 1
    first_nonfinite_step: int | None = None
    best: Score | None = None
    final: Score | None = None
    status: Status = field(default="finished")
    error: str | None = None
    note: str | None = None

    @property
    def epoch(self) -> int:
        """The epoch that is being trained, from 1."""
        return self.epochs + 1

    def stop(self, status: Status, error: str) -> None:
        """End the run as one that went wrong."""
        self.status, self.error = status, " ".join(error.split())

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resume needs, as plain data."""
        return {name: value for name, value in asdict(self).items() if name not in _OF_THIS_PROCESS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned.

        Raises:
            ValueError: If it is of other types.
        """
        found = _STATE.validate_python(state)
        for name in found.state_dict():
            setattr(self, name, getattr(found, name))


_STATE: TypeAdapter[Progress] = TypeAdapter(Progress)
_OF_THIS_PROCESS = frozenset({"status", "error", "note"})
