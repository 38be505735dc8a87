"""`metrics.jsonl`, the figures of a run: a line of strict JSON for each interval and validation.

    {"kind": "train", "step": 10, "epoch": 1, "loss": 2.1, "accuracy": 0.2, ...}

All code that writes or reads the file is in this module, which does not import torch.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from halfstep.files import json_text, parse_json, write_atomically
from halfstep.train.store.line_file import LineFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "metrics.jsonl"
EVERY_S = 0.2
"""Minimum seconds between two writes of training lines; lines in between are written together."""


class MetricsLog:
    """Writes the lines of a run. A run that `goes_on` appends to the existing lines."""

    def __init__(self, run: Path, *, goes_on: bool) -> None:
        self._lines = LineFile(run / FILE, goes_on=goes_on)
        self._written = -math.inf

    def append(self, kind: str, figures: Mapping[str, Any]) -> None:
        """Append a line of figures, which include at least `step` and `epoch`.

        Lines of kind "train" are written at most once in `EVERY_S` seconds.

        Raises:
            OSError: If the file cannot be written. The line is kept for the next write.
        """
        self._lines.add(json_text({"kind": kind, **figures}))
        if kind != "train" or time.monotonic() - self._written >= EVERY_S:
            self.write_out()

    def write_out(self) -> None:
        """Write all lines that are not written yet, including those whose write failed."""
        self._written = time.monotonic()
        self._lines.write_out()

    def close(self) -> None:
        """Write the remaining lines, and close the file.

        Raises:
            OSError: If the lines cannot be written.
        """
        try:
            self.write_out()
        finally:
            self._lines.close()


def exists(run: Path) -> bool:
    """Tell whether a directory contains `metrics.jsonl`, as runs do and config folders do not."""
    return (run / FILE).is_file()


def read(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the complete lines of a run, of one kind or of all; an empty list without a file."""
    try:
        text = (run / FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    rows = [row for line in text.splitlines() if (row := _parsed(line)) is not None]
    return [row for row in rows if kind is None or row["kind"] == kind]


def cut_after(run: Path, *, step: int, epochs: int) -> None:
    """Remove lines after `step` and validations after `epochs`, which the resumed run repeats."""
    file = run / FILE
    if not file.is_file():
        file.unlink(missing_ok=True)  # a dangling link, which would redirect the next lines
        return
    kept = []
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        figures = _parsed(line)
        if figures is None or figures.get("step", math.inf) > step:
            continue
        if figures["kind"] != "val" or figures.get("epoch", math.inf) <= epochs:
            kept.append(line)
    write_atomically(file, "".join(kept))


def _parsed(line: str) -> dict[str, Any] | None:
    """Return the figures of a line; None if it is incomplete, as in a running or killed run."""
    try:
        figures = parse_json(line)
    except ValueError:
        return None
    is_one = (
        isinstance(figures, dict)
        and isinstance(figures.get("kind"), str)
        and all(isinstance(figures.get(name, 0), int) for name in ("step", "epoch"))
    )
    return figures if is_one else None
