"""The directory for the results of a bench: checked before the measurement, written after it.

runs/bench/digits-loader/
    results.json  report.html
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from halfstep.bench.outcome import REPORT, RESULTS
from halfstep.bench.report import page
from halfstep.errors import UserError
from halfstep.files import json_text, parse_json, write_atomically

if TYPE_CHECKING:
    from halfstep.bench.outcome import Outcome


def place(out: Path | None, bench: str, config: str) -> Path:
    """Return the directory of a bench, without creating it.

    Args:
        out: The requested directory; None for the default.
        bench: The name of the bench.
        config: The name of the config.

    Raises:
        UserError: If the directory cannot be written, or contains other files or another bench.
    """
    directory = out or Path("runs") / "bench" / f"{config}-{bench}"
    _refuse_unwritable(directory)
    if not directory.is_dir():
        return directory
    # Hidden files are left over if a process is killed while it writes.
    if all(path.name.startswith(".") for path in directory.iterdir()):
        return directory
    try:
        held = parse_json((directory / RESULTS).read_text(encoding="utf-8"))
        theirs = held["bench"], held["config"]
    except (OSError, ValueError, TypeError, KeyError):
        raise UserError(
            f"{directory} contains files that are not a bench; name an empty or new directory with "
            "--out"
        ) from None
    if theirs != (bench, config):
        raise UserError(
            f"{directory} holds bench {theirs[0]} of {theirs[1]!r}, not {bench} of {config!r}; "
            "name another directory with --out"
        )
    return directory


def write(directory: Path, outcome: Outcome) -> None:
    """Write the results and the page, each file atomically."""
    texts = {
        RESULTS: json_text(outcome.as_json(), indent=2) + "\n",
        REPORT: page(outcome),
    }
    for name, text in texts.items():
        write_atomically(directory / name, text)


def _refuse_unwritable(directory: Path) -> None:
    nearest = next(folder for folder in (directory, *directory.parents) if folder.exists())
    if not nearest.is_dir():
        raise UserError(f"{nearest} is a file; name a directory with --out")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"cannot write into {nearest}; name another directory with --out")
