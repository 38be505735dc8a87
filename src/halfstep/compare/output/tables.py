"""The output files of a comparison, rewritten whenever a cell ends.

comparison.json  all results           cells.csv    one line per run
table.md  table.tex  the table         report.html  the report for a browser
"""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING

from halfstep.compare.cells.directory import COMPARISON, read
from halfstep.compare.output.records import as_json, csv_text, write_parquet
from halfstep.compare.output.report.page import page
from halfstep.compare.output.texts import latex, markdown
from halfstep.errors import UserError, closest
from halfstep.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from halfstep.compare.cells.results import Result
    from halfstep.compare.plan.grid import Grid
    from halfstep.compare.rows.predicted import Prediction

TABLE = "table.md"
REPORT = "report.html"
LATEX = "table.tex"
CELLS = "cells.csv"


def write_tables(
    directory: Path, grid: Grid, results: Sequence[Result], predicted: Sequence[Prediction] = ()
) -> None:
    """Write the current state of the comparison, and the predictions for its rows.

    Raises:
        OSError: If a file cannot be written; an existing file is then unchanged.
    """
    # comparison.json is first: if the disk becomes full, the other files can be made from it.
    text = json.dumps(as_json(grid, results, predicted), indent=2, allow_nan=False) + "\n"
    write_atomically(directory / COMPARISON, text)
    write_atomically(directory / TABLE, markdown(grid, results, predicted))
    write_atomically(directory / LATEX, latex(grid, results, predicted))
    write_atomically(directory / CELLS, csv_text(grid, results))
    write_atomically(directory / REPORT, page(grid, results, predicted))


def keep_tables(directory: Path, grid: Grid) -> str:
    """Copy the tables of an earlier comparison before they are overwritten, if it has other runs.

    Returns:
        The names of the copies, as text; "" if this comparison contains all runs of the earlier
        one, so that no copy is needed.

    Raises:
        OSError: If a copy cannot be written.
    """
    before = read(directory / COMPARISON) or {}
    now = {(cell.recipe, tuple(cell.arm.point), cell.seed) for cell in grid.cells}
    cells = before.get("cells", [])
    if all(
        (cell.get("recipe"), tuple(cell.get("point", ())), cell.get("seed")) in now
        for cell in cells
    ):
        return ""
    originals = [directory / name for name in (TABLE, REPORT, COMPARISON, LATEX, CELLS)]
    originals = [file for file in originals if file.is_file()]
    for number in count(1):
        copies = [file.with_stem(f"{file.stem}-{number}") for file in originals]
        if not any(file.exists() for file in copies):
            break
    for original, copy in zip(originals, copies, strict=True):
        write_atomically(copy, original.read_bytes())
    return ", ".join(file.name for file in copies)


def judged_before(directory: Path, grid: Grid) -> tuple[tuple[int, ...], ...]:
    """Return the looks of the comparisons that the directory has judged; () for other options."""
    before = read(directory / COMPARISON) or {}
    if before.get("options") != list(grid.options) or before.get("points") != [
        list(point) for point in grid.points
    ]:
        return ()
    return tuple(tuple(looks) for looks in before.get("plans", ()))


def parse_exports(text: str | None) -> tuple[str, ...]:
    """Parse `--export parquet,png`, and check that the required packages are installed.

    Raises:
        UserError: If a format is unknown or its package is missing.
    """
    given = [part.strip() for part in (text or "").split(",") if part.strip()]
    for kind in given:
        if kind not in _EXPORTS:
            raise UserError(
                f"--export is {text!r}; allowed: {', '.join(_EXPORTS)}, with commas between; the "
                f"others are always written{closest(kind, _EXPORTS)}"
            )
        package, extra, _ = _EXPORTS[kind]
        try:
            __import__(package)
        except ImportError as error:
            raise UserError(
                f"--export {kind} needs {package}; write pip install 'halfstep[{extra}]'"
            ) from error
    return tuple(dict.fromkeys(given))


def export(
    directory: Path, grid: Grid, results: Sequence[Result], kinds: Sequence[str]
) -> list[str]:
    """Write the formats that need extra packages; return the names of the files."""
    return [name for kind in kinds for name in _EXPORTS[kind][2](directory, grid, results)]


def _parquet(directory: Path, grid: Grid, results: Sequence[Result]) -> list[str]:
    write_parquet(directory / "cells.parquet", grid, results)
    return ["cells.parquet"]


def _png(directory: Path, grid: Grid, results: Sequence[Result]) -> list[str]:
    from halfstep.compare.output.plots import write_plots

    return write_plots(directory, grid, results)


_EXPORTS: dict[str, tuple[str, str, Callable[[Path, Grid, Sequence[Result]], list[str]]]] = {
    "parquet": ("pyarrow", "parquet", _parquet),
    "png": ("matplotlib", "plots", _png),
}
"""By format: the package that it needs, the extra of halfstep that installs it, and its writer."""
