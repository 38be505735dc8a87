"""The comparison's directory on disk: who may write into it, and which cells have a result.

    runs/compare/digits/
        comparison.json  table.md ...   rewritten whenever a cell ends; see `tables`
        fp16-seed0/
            cell.json  config.yaml      the settings and versions that the run below has
            run/                        the run directory, written by `halfstep train`
            stdout.log  stderr.log      what it said

A cell has a result when `cell.json` bears its fingerprint and `run/summary.json`, which a run
writes last, exists. Every other state, whatever caused it, means that the cell is to be run.
"""

from __future__ import annotations

import contextlib
import functools
import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from halfstep.compare.cells.results import Result, from_summary
from halfstep.compare.plan.grid import Cell, changes
from halfstep.errors import UserError
from halfstep.files import parse_json, write_atomically
from halfstep.train.config.text import dump
from halfstep.train.store import links
from halfstep.train.store.diagnosis_file import in_a_line
from halfstep.train.store.lock import locked
from halfstep.train.store.replaced import make_way

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

COMPARISON = "comparison.json"
VERSIONED = ("halfstep", "torch")
"""Packages whose versions results of one comparison should share."""
_ENDING_S = 2.0
"""In which processes of a comparison that was killed a moment ago let go of its directory."""


@contextlib.contextmanager
def claimed(directory: Path, config: str, cells: Sequence[Cell]) -> Iterator[int]:
    """Make the directory and keep every other comparison out of it.

    Args:
        directory: The comparison's directory; made if it does not exist.
        config: Name of the config that is compared.
        cells: Those that are to run in it.

    Yields:
        The descriptor of the lock. A cell's process inherits it, so that a cell which outlives its
        comparison keeps the directory claimed until it has ended.

    Raises:
        UserError: If the directory cannot be written, holds something else or links by which files
            outside would be written, or is in use.
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
    """Return the result that the disk holds for this very cell; "pending" where it holds none."""
    summary = read(cell.run_directory / "summary.json")
    if summary is None or _record(cell).get("fingerprint") != cell.fingerprint:
        return Result(cell, "pending")
    environment = read(cell.run_directory / "environment.json") or {}
    return from_summary(cell, summary, environment, in_a_line(cell.run_directory))


def versions() -> dict[str, str]:
    """Return what a cell that starts now runs with."""
    return {package: version(package) for package in VERSIONED}


def changed_since(cell: Cell) -> list[str]:
    """Say which settings differ from those of the finished run that lies in the cell's place."""
    record = _record(cell)
    if not (cell.run_directory / "summary.json").exists() or "settings" not in record:
        return []
    return changes(record["settings"], cell.settings)


def prepare(cell: Cell, *, fresh: bool = False) -> None:
    """Make the cell's directory ready for a run and record what it is started with.

    What an interrupted run of the very same settings and versions left stays, so that it goes on
    from its newest checkpoint.

    Args:
        cell: The cell.
        fresh: Whether to start anew in any case.
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
    """Return the mapping in a JSON file; None if there is no such file or nothing whole in it."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _refuse_foreign(directory: Path, config: str) -> None:
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory} is a file; name a directory with --out")
    # Hidden names are the lock, and what a kill left of the very first write.
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
    """Yield the links in place of a cell's directory, its run directory or its logs."""
    for directory in (cell.directory for cell in cells):
        there = directory.iterdir() if directory.is_dir() else ()
        yield from (each for each in (directory, *there) if each.is_symlink())


def _record(cell: Cell) -> dict[str, Any]:
    return read(cell.directory / "cell.json") or {}
