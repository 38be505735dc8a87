"""A run that another one replaces: set aside until the new one has saved a checkpoint.

    runs/digits/fp16-seed0/replaced/checkpoints/...

It is a whole run directory there, and the new run removes it once it has saved a checkpoint. A run
without checkpoints is no loss, and goes at once.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from halfstep.train.store import diagnosis_file, metrics_log

if TYPE_CHECKING:
    from pathlib import Path

LEFT_BY_A_RUN = (
    "summary.json",
    "checkpoints",
    metrics_log.FILE,
    "environment.json",
    "tensorboard",
    "tracking.json",
    "classes.csv",
    "confusion.csv",
    diagnosis_file.RECORD,
    diagnosis_file.TEXT,
    diagnosis_file.BUNDLE,
    "export",
    "wandb",
    "config.yaml",
)
"""The summary first: without it a run is not over. The config last: without it there is no run."""

FOLDER = "replaced"


def holds_checkpoints(run: Path) -> bool:
    """Tell whether a run directory holds checkpoints."""
    return any((run / "checkpoints").glob("*.pt"))


def make_way(run: Path) -> None:
    """Clear a directory for a new run: what an earlier one left is removed, or set aside.

    It is set aside, in `replaced/`, where there are checkpoints; see `let_go`.
    """
    aside = run / FOLDER
    worth_keeping = holds_checkpoints(run)
    if worth_keeping:
        let_go(run)
        aside.mkdir()
    for name in LEFT_BY_A_RUN:
        left = run / name
        linked = left.is_symlink()
        if not (linked or left.exists()):
            continue
        if worth_keeping:
            left.rename(aside / name)
        else:
            shutil.rmtree(left) if left.is_dir() and not linked else left.unlink()


def let_go(run: Path) -> None:
    """Remove the run that another one has replaced, which now has a checkpoint of its own."""
    if (run / FOLDER).is_dir():
        shutil.rmtree(run / FOLDER)


def put_back(run: Path) -> None:
    """Restore what was set aside for a run that could not begin."""
    aside = run / FOLDER
    if aside.is_dir() and not aside.is_symlink():
        for each in aside.iterdir():
            each.replace(run / each.name)
        aside.rmdir()
