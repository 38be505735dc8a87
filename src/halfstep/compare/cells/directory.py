"""The comparison's directory on disk: the lock for writing, and the cells that have a result.

    runs/compare/digits/
        comparison.json  table.md ...   rewritten whenever a cell ends; see `tables`
        fp16-seed0/
            cell.json  config.yaml      the settings and versions of the run
            run/                        the run directory, written by `halfstep train`
            stdout.log  stderr.log      the output of the run

A cell has a result if `cell.json` contains the cell's fingerprint, and if `run/summary.json`
exists, which a run writes last. In every other state, whatever the reason, the cell must run.
"""

from __future__ import annotations

import contextlib
import functools
import json
from typing import TYPE_CHECKING, Any

from halfstep.compare.cells.results import Result, from_summary
from halfstep.compare.plan.grid import Cell, changes
from halfstep.errors import UserError
from halfstep.files import parse_json, write_atomically
from halfstep.train.store import links
from halfstep.train.store.diagnosis_file import in_a_line
from halfstep.train.store.lock import locked
from halfstep.train.store.replaced import make_way
from halfstep.versions import version
from halfstep.yaml_text import dump

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

COMPARISON = "comparison.json"
VERSIONED = ("halfstep", "torch")
"""The packages whose versions should be the same for all results of a comparison."""
_ENDING_S = 2.0
"""Seconds to wait for the lock: the processes of a comparison that was just killed release it."""


@contextlib.contextmanager
def claimed(directory: Path, config: str, cells: Sequence[Cell]) -> Iterator[int]:
    """Create the directory, and lock it against other comparisons while the block runs.

    Args:
        directory: The comparison's directory; created if it does not exist.
        config: Name of the config that is compared.
        cells: The cells of the comparison.

    Yields:
        The file descriptor of the lock. The process of a cell inherits it, so if a cell outlives
        its comparison, the directory stays locked until the cell ends.

    Raises:
        UserError: If the directory cannot be written, is in use, contains other files or another
            comparison, or contains symbolic links to files outside.
    """
    _refuse_foreign(directory, config)
    links.refuse(directory, _linked(cells))
    with contextlib.ExitStack() as stack:
        try:
            refusal = functools.partial(_refusal, directory)
            lock = stack.enter_context(locked(directory, refusal, patience=_ENDING_S))
        except OSError as error:
            raise UserError(
                f"cannot write into {directory}: {error.strerror}; name another directory with "
                "--out"
            ) from error
        yield lock


def _refusal(directory: Path, holder: str) -> str:
    return (
        f"{directory} is in use by another comparison ({holder}) or by a run that it started; wait "
        "until they end, end them, or name another directory with --out"
    )


def result_of(cell: Cell) -> Result:
    """Return the result on disk for a cell with the same settings; "pending" if there is none."""
    summary = read(cell.run_directory / "summary.json")
    if summary is None or _record(cell).get("fingerprint") != cell.fingerprint:
        return Result(cell, "pending")
    environment = read(cell.run_directory / "environment.json") or {}
    return from_summary(cell, summary, environment, in_a_line(cell.run_directory))


def versions() -> dict[str, str]:
    """Return the installed version of each package in `VERSIONED`."""
    return {package: version(package) for package in VERSIONED}


def changed_since(cell: Cell) -> list[str]:
    """Return the settings that differ from those of a finished run in the cell's directory."""
    record = _record(cell)
    if not (cell.run_directory / "summary.json").exists() or "settings" not in record:
        return []
    return changes(record["settings"], cell.settings)


def prepare(cell: Cell, *, fresh: bool = False) -> None:
    """Prepare the cell's directory for a run, and record the settings and versions of the run.

    The files of an interrupted run with the same settings and versions are kept, so that the run
    continues from its newest checkpoint.

    Args:
        cell: The cell.
        fresh: Whether to start a new run in any case.
    """
    record = cell.directory / "cell.json"
    wanted = {
        "fingerprint": cell.fingerprint,
        "versions": versions(),
        "settings": dict(cell.settings),
    }
    over = (cell.run_directory / "summary.json").exists()
    if not (fresh or over) and _record(cell) == wanted:
        return
    record.unlink(missing_ok=True)
    make_way(cell.run_directory)
    write_atomically(cell.config_file, dump(cell.config))
    write_atomically(record, json.dumps(wanted, indent=2, allow_nan=False) + "\n")


def read(path: Path) -> dict[str, Any] | None:
    """Return the mapping in a JSON file; None if the file does not exist or has other content."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _refuse_foreign(directory: Path, config: str) -> None:
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is a file; name a directory with --out")
    # The names that begin with a dot are the lock, and temporary files of a write that was killed.
    if not directory.is_dir() or all(path.name.startswith(".") for path in directory.iterdir()):
        return
    held = (read(directory / COMPARISON) or {}).get("config")
    if held is None:
        raise UserError(
            f"{directory} contains files that do not belong to a comparison; name an empty or new "
            "directory with --out"
        )
    if held != config:
        raise UserError(
            f"{directory} holds a comparison of {held!r}, not of {config!r}; "
            "name another directory with --out"
        )


def _linked(cells: Sequence[Cell]) -> Iterator[Path]:
    """Yield each cell's directory, and each entry of it, that is a symbolic link."""
    for directory in (cell.directory for cell in cells):
        there = directory.iterdir() if directory.is_dir() else ()
        yield from (path for path in (directory, *there) if path.is_symlink())


def _record(cell: Cell) -> dict[str, Any]:
    return read(cell.directory / "cell.json") or {}
