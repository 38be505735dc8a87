"""Keeps a run that is overwritten, until the new run has saved a checkpoint.

    runs/digits/fp16-seed0/replaced/checkpoints/...

`replaced` is a complete run directory, which the new run removes once it has saved a checkpoint. An
old run without checkpoints is removed at once.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from halfstep.train.store import diagnosis_file, line_file, metrics_log

if TYPE_CHECKING:
    from pathlib import Path

LEFT_BY_A_RUN = (
    "summary.json",
    "checkpoints",
    metrics_log.FILE,
    line_file.LOG,
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
"""The files of a run, in the order of their removal, which may be interrupted.

The summary comes first, because a run without a summary counts as unfinished. The config comes
last, because a directory without a config does not count as a run.
"""

FOLDER = "replaced"


def holds_checkpoints(run: Path) -> bool:
    """Tell whether a run directory holds checkpoints."""
    return any((run / "checkpoints").glob("*.pt"))


def make_way(run: Path) -> None:
    """Clear a directory for a new run: move an earlier run to `replaced/`, or remove it.

    Only a run with checkpoints is moved; `let_go` removes it later.
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
    """Remove the replaced run, which is no longer needed once the new run has a checkpoint."""
    if (run / FOLDER).is_dir():
        shutil.rmtree(run / FOLDER)


def put_back(run: Path) -> None:
    """Move the replaced run back, because the new run could not begin."""
    aside = run / FOLDER
    if aside.is_dir() and not aside.is_symlink():
        for path in aside.iterdir():
            path.replace(run / path.name)
        aside.rmdir()
