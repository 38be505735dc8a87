"""A file to which a run appends whole lines: `metrics.jsonl` and `log.txt`.

Nothing here imports torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LOG = "log.txt"
"""The progress of a run, as lines for people."""


class LineFile:
    """Appends lines to a file; lines that could not be written are kept for the next write.

    Args:
        path: The file.
        goes_on: Whether to keep the lines that are in the file. An unfinished last line, of a
            process that was killed while it wrote, is removed.

    Raises:
        OSError: If the file cannot be opened.
    """

    def __init__(self, path: Path, *, goes_on: bool) -> None:
        if goes_on:
            _cut_unfinished_line(path)
        # Unbuffered, so that lines that a full disk refuses stay in `_unwritten`.
        self._file = path.open("ab" if goes_on else "wb", buffering=0)
        self._unwritten = b""

    def add(self, line: str) -> None:
        """Add a line, which `write_out` writes."""
        self._unwritten += f"{line}\n".encode()

    def write_out(self) -> None:
        """Write all lines that are not written yet, including those whose write failed.

        Raises:
            OSError: If the file cannot be written.
        """
        while self._unwritten:
            self._unwritten = self._unwritten[self._file.write(self._unwritten) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _cut_unfinished_line(path: Path) -> None:
    if path.is_file():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
