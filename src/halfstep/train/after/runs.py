"""Lists the runs under a folder, with their status and their best accuracy.

It reads the files that a run writes (`config.yaml`, `metrics.jsonl` and, at the end,
`summary.json`), so that it also lists runs in progress and runs that were killed. Nothing here
imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.recipe import recipe
from halfstep.train.store import metrics_log
from halfstep.train.store.run_directory import read_summary
from halfstep.yaml_text import parse

if TYPE_CHECKING:
    from pathlib import Path

UNFINISHED = "unfinished"
DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Run:
    """One run, as described by the files in its directory.

    Attributes:
        tag: The tag that the user gave the run; None without one.
        status: Status in the summary; "unfinished" without a summary (the run is in progress or was
            killed); "damaged" if its files cannot be read.
        epochs: Number of finished epochs; without a summary, the last epoch that was validated.
        planned_epochs: Number of epochs in the config; None if the config cannot be read.
        best_accuracy: Highest validation accuracy, 0 to 1; None before the first validation.
        best_epoch: The first epoch with the best accuracy, counted from 1.
        final_accuracy: Accuracy of the newest validation, 0 to 1.
        when: Time at which the run last wrote a file, in UTC.
    """

    path: Path
    config: str
    recipe: str
    seed: int | None
    tag: str | None
    status: str
    epochs: int
    planned_epochs: int | None
    best_accuracy: float | None
    best_epoch: int | None
    final_accuracy: float | None
    when: datetime


def find(root: Path) -> list[Run]:
    """Return the runs under a folder, sorted by path."""
    if not root.is_dir():
        raise UserError(
            f"{str(root)!r} is not a folder; write a folder that contains runs, such as runs, the "
            "default of "
            "halfstep train"
        )
    configs = (file.parent for file in root.rglob("config.yaml"))
    return [_read(path) for path in sorted(configs) if metrics_log.exists(path)]


def _read(path: Path) -> Run:
    try:
        values = parse((path / "config.yaml").read_text(encoding="utf-8"), str(path))
        named = recipe(values["recipe"]).name
        summary = read_summary(path)
    except (OSError, ValueError, TypeError, KeyError):
        values, named, summary = {}, "", {"status": DAMAGED}
    validations = [
        line
        for line in metrics_log.read(path, "val")
        if isinstance(line.get("accuracy"), float) and "epoch" in line
    ]
    best = max(validations, key=lambda line: (line["accuracy"], -line["epoch"]), default=None)
    summary = summary or {}
    return Run(
        path=path,
        config=values.get("name", ""),
        recipe=named,
        seed=values.get("seed"),
        tag=summary.get("tag"),
        status=summary.get("status", UNFINISHED),
        epochs=summary.get("epochs", max((line["epoch"] for line in validations), default=0)),
        planned_epochs=values.get("epochs"),
        best_accuracy=best["accuracy"] if best else None,
        best_epoch=best["epoch"] if best else None,
        final_accuracy=validations[-1]["accuracy"] if validations else None,
        when=datetime.fromtimestamp(
            max(file.stat().st_mtime for file in path.iterdir() if _is_written(file)), UTC
        ),
    )


def _is_written(file: Path) -> bool:
    """Tell whether a run wrote a file as its result, unlike its lock, which is a hidden file."""
    return file.is_file() and not file.name.startswith(".")
