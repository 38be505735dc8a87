"""Evaluates a run's checkpoint and checks that it still gives what the run recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.train import checkpoint
from halfstep.train.config_files import load
from halfstep.train.environment import pick_device
from halfstep.train.setup import set_up
from halfstep.train.validate import Figures, validate

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.train.checkpoint import Which

_LOSS_TOLERANCE = 1e-5
"""Relative; another number of threads or another processor adds up in another order."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a checkpoint gives now, beside what its run recorded.

    Attributes:
        measured: Loss and accuracy now.
        recorded: Those that the run wrote when it made the checkpoint.
        epoch: The epoch that the checkpoint was made after.
        device: Where it was evaluated.
    """

    measured: Figures
    recorded: Figures
    epoch: int
    device: str

    @property
    def matches(self) -> bool:
        """Whether the accuracies are equal, and the losses to rounding."""
        return self.measured.accuracy == self.recorded.accuracy and (
            math.isclose(self.measured.loss, self.recorded.loss, rel_tol=_LOSS_TOLERANCE)
            or (math.isnan(self.measured.loss) and math.isnan(self.recorded.loss))
        )


def evaluate(run: Path, which: Which = "best", device: str | None = None) -> Evaluation:
    """Run the validation split through a checkpoint of a run, under the run's recipe.

    Args:
        run: The run directory.
        which: Its best or its last checkpoint.
        device: Where; by default as the run's config says.

    Raises:
        UserError: If there is no such run or checkpoint, or if it is damaged.
    """
    config_file = run / "config.yaml"
    if not config_file.is_file():
        problem = "does not exist"
        if run.exists():
            problem = "holds no config.yaml" if run.is_dir() else "is a file"
        raise UserError(
            f"{str(run)!r} is no run directory: it {problem}; write one that halfstep train left, "
            "such as runs/digits/fp32-seed0"
        )
    config = load(str(config_file), flags={"device": device})
    stored = checkpoint.load(checkpoint.path(run, which))
    target = pick_device(config.device)
    setup = set_up(config, target, weights=stored.model)
    with setup.engine:
        measured = validate(setup)
    return Evaluation(measured, Figures(stored.loss, stored.accuracy), stored.epoch, str(target))
