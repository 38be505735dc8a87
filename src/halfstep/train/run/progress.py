"""The position of a run: its counters and scores, which its checkpoints contain."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from halfstep.train.store.run_directory import Status  # noqa: TC001  # pydantic reads it at run time

if TYPE_CHECKING:
    from halfstep.train.task.figures import Figures


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of the validation after `epoch` (from 1); see `Figures` for the other fields."""

    loss: float
    accuracy: float | None
    epoch: int
    top5: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, figures: Figures, epoch: int) -> Score:
        """Return the scores that a run keeps of a validation."""
        return cls(figures.loss, figures.accuracy, epoch, figures.top5, dict(figures.metrics))

    def figures(self) -> dict[str, float]:
        """Return the scores that are known, by their names in `Figures.scalars`."""
        figures = {"loss": self.loss, "accuracy": self.accuracy, "top5": self.top5}
        return {
            name: figure for name, figure in figures.items() if figure is not None
        } | self.metrics


@dataclass(slots=True)
class Progress:
    """The counters and scores of a run.

    Attributes:
        epochs: Number of finished epochs, including one that `max_steps` cut short.
        batch: Number of finished batches of the current epoch.
        images: Number of training images seen.
        train_seconds: Training time, including the time before the run was resumed.
        wall_seconds: Time from reading the data to the newest checkpoint, including the time before
            the run was resumed.
        dropped: Number of steps that an observer vetoed, usually for a non-finite loss, or that a
            rollback undid.
        rollbacks: Number of rollbacks to a checkpoint.
        pieces: Number of pieces that a batch is split into, because memory does not suffice.
        first_nonfinite_step: The first step, counted from 1, with a non-finite loss; or one that
            was skipped for non-finite gradients, if `on_nonfinite` is "skip" or "rollback".
        best: The best validation.
        final: The newest validation.
        status: Status of the run; not part of a checkpoint.
        error: Why the run failed, in one line; not part of a checkpoint.
        note: Why the run stops before its last epoch without failing; not part of a checkpoint.
    """

    epochs: int = 0
    batch: int = 0
    images: int = 0
    train_seconds: float = 0.0
    wall_seconds: float = 0.0
    dropped: int = 0
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
        """Mark the run as failed, which ends it."""
        self.status, self.error = status, " ".join(error.split())

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resume needs, as plain data."""
        return {name: value for name, value in asdict(self).items() if name not in _OF_THIS_PROCESS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned.

        Raises:
            ValueError: If a value has the wrong type.
        """
        values = _STATE.validate_python(state)
        for name in values.state_dict():
            setattr(self, name, getattr(values, name))


_STATE: TypeAdapter[Progress] = TypeAdapter(Progress)
_OF_THIS_PROCESS = frozenset({"status", "error", "note"})
