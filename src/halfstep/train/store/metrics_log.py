"""`metrics.jsonl`, the figures of a run: a line of strict JSON for each interval and validation.

    {"kind": "train", "step": 10, "epoch": 1, "loss": 2.1, "accuracy": 0.2, ...}

Whoever writes or reads the file does it here. Nothing here imports torch.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from halfstep.files import json_text, parse_json, write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "metrics.jsonl"
EVERY_S = 0.2
"""Lines of steps that take less time than this are written together."""


class MetricsLog:
    """The lines of a run in training, which are added to those of before if it `goes_on`."""

    def __init__(self, run: Path, *, goes_on: bool) -> None:
        # Without a buffer: it would lose what a full disk does not take.
        self._file = (run / FILE).open("ab" if goes_on else "wb", buffering=0)
        self._unwritten = b""
        self._written = -math.inf

    def append(self, kind: str, figures: Mapping[str, Any]) -> None:
        """Add a line of figures, at least `step` and `epoch`; kept if the disk does not take it.

        Lines of kind "train" that follow the last write shortly wait for the next one.

        Raises:
            OSError: If the disk does not take it.
        """
        self._unwritten += f"{json_text({'kind': kind, **figures})}\n".encode()
        if kind != "train" or time.monotonic() - self._written >= EVERY_S:
            self.write_out()

    def write_out(self) -> None:
        """Write the lines that wait, or that the disk did not take when they came."""
        self._written = time.monotonic()
        while self._unwritten:
            self._unwritten = self._unwritten[self._file.write(self._unwritten) :]

    def close(self) -> None:
        """Write the lines that wait, and close the file.

        Raises:
            OSError: If the disk does not take them.
        """
        try:
            self.write_out()
        finally:
            self._file.close()


def exists(run: Path) -> bool:
    """Tell whether a directory has the file: that of a run has, a folder with a config has not."""
    return (run / FILE).is_file()


def read(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the whole lines of a run, of one kind or of all; none where there is no file."""
    try:
        text = (run / FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = [each for line in text.splitlines() if (each := _parsed(line)) is not None]
    return [each for each in found if kind is None or each["kind"] == kind]


def cut_after(run: Path, *, step: int, epochs: int) -> None:
    """Remove lines of a later step, and validations of a later epoch, which are made again."""
    file = run / FILE
    if not file.is_file():
        file.unlink(missing_ok=True)  # a link to nothing: what follows would be written there
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
    """Return what a line holds; None for half a line, of a run that goes on or was killed."""
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
