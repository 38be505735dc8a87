"""What runs lie under a folder, how they stand, and the best that each has reached.

It reads what a run leaves as it goes (`config.yaml`, `metrics.jsonl`, `summary.json`), so that runs
in progress and runs that were killed are listed too. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.recipe import recipe
from halfstep.train.config.text import parse
from halfstep.train.store import metrics_log
from halfstep.train.store.run_directory import read_summary

if TYPE_CHECKING:
    from pathlib import Path

UNFINISHED = "unfinished"
DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Run:
    """One run, as its directory tells it.

    Attributes:
        tag: What the user called the run.
        status: A summary's, or "unfinished" without one (it goes on, or was killed), or "damaged".
        epochs: Epochs that were validated.
        best_accuracy: Highest validation accuracy, 0 to 1; None before the first validation.
        best_epoch: The first epoch that reached it.
        final_accuracy: The newest validation's accuracy.
        when: When the run wrote last, in UTC.
    """

    path: Path
    config: str
    recipe: str
    seed: int | None
    tag: str | None
    status: str
    epochs: int
    best_accuracy: float | None
    best_epoch: int | None
    final_accuracy: float | None
    when: datetime


def find(root: Path) -> list[Run]:
    """Return the runs under a folder, by path."""
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
        each
        for each in metrics_log.read(path, "val")
        if isinstance(each.get("accuracy"), float) and "epoch" in each
    ]
    best = max(validations, key=lambda each: (each["accuracy"], -each["epoch"]), default=None)
    summary = summary or {}
    return Run(
        path=path,
        config=values.get("name", ""),
        recipe=named,
        seed=values.get("seed"),
        tag=summary.get("tag"),
        status=summary.get("status", UNFINISHED),
        epochs=max((each["epoch"] for each in validations), default=0),
        best_accuracy=best["accuracy"] if best else None,
        best_epoch=best["epoch"] if best else None,
        final_accuracy=validations[-1]["accuracy"] if validations else None,
        when=datetime.fromtimestamp(
            max(file.stat().st_mtime for file in path.iterdir() if _is_written(file)), UTC
        ),
    )


def _is_written(file: Path) -> bool:
    """Tell whether a file holds what a run has written; its lock only says who was there last."""
    return file.is_file() and not file.name.startswith(".")
