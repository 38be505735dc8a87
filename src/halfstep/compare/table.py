"""Print a comparison: one list of columns, as a table for terminals and as Markdown.

The numbers come from `results`; this file only chooses units, digits and headers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from halfstep.compare.results import Result, Row, Spread, rows_by_recipe, rows_by_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from halfstep.compare.grid import Grid

MISSING = "-"
_STYLES = {"finished": "green", "pending": "dim", "crashed": "bold red"}

Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        header: Its header; a terminal breaks it at the bars, so that the column stays narrow.
        cell: Gives what it says of a row: the number, and the spread over seeds if there is one.
    """

    header: str
    cell: Callable[[Row], Cells]


def show(console: Console, grid: Grid, results: Sequence[Result]) -> None:
    """Print the comparison: one row per recipe, then the notes.

    No number is ever cut: a table that is wider than the console runs over its edge. What is piped
    is not wrapped.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    rows = rows_by_recipe(grid, results)
    columns = _columns(grid, results)
    table.add_column("recipe")
    for column in columns:
        table.add_column(column.header.replace("|", "\n"), justify="right")
    for row in rows:
        table.add_row(_name_and_status(row), *("\n".join(column.cell(row)) for column in columns))
    unbounded = console.options.update(width=10_000)
    table.width = console.measure(table, options=unbounded).maximum
    console.print()
    console.print(Text(title(grid), style="bold"), soft_wrap=not console.is_terminal)
    console.print(table, crop=False, no_wrap=True)
    console.print()
    for note in notes(grid, results):
        console.print(Text(note, style="dim"), soft_wrap=not console.is_terminal)


def markdown(grid: Grid, results: Sequence[Result]) -> str:
    """Return the comparison as Markdown: by recipe, with several seeds also by seed."""
    parts = [
        f"# {_escape(title(grid))}",
        _markdown_table(grid, results, rows_by_recipe(grid, results)),
    ]
    if len(grid.seeds) > 1:
        parts += ["## By seed", _markdown_table(grid, results, rows_by_seed(grid, results))]
    parts += [_escape(note) for note in notes(grid, results)]
    return "\n\n".join(parts) + "\n"


def title(grid: Grid) -> str:
    """Say what is compared."""
    options = f" with {' '.join(grid.options)}" if grid.options else ""
    if len(grid.seeds) == 1:
        return f"{grid.config} on {grid.device}{options}, seed {grid.seeds[0]}"
    return f"{grid.config} on {grid.device}{options}, {len(grid.seeds)} seeds"


def notes(grid: Grid, results: Sequence[Result]) -> list[str]:
    """What the reader of the table has to know: what a number is, and why a cell did not finish."""
    said = []
    if len(grid.seeds) > 1:
        said.append("± is the standard deviation over the seeds that finished.")
    if _on_cpu(results):
        said.append("* rise of the process's resident memory over training.")
    several = len(grid.seeds) > 1
    for result in results:
        if result.reason:
            label = result.cell.label if several else result.cell.recipe
            said.append(f"{label} {result.status}: {result.reason}")
    return said


def _columns(grid: Grid, results: Sequence[Result]) -> list[Column]:
    baseline = grid.recipes[0] if len(grid.recipes[0]) <= 5 else "row 1"
    footnote = "*" if _on_cpu(results) else ""
    return [
        Column("best|%", lambda row: _percent(row.measures["best_accuracy"])),
        Column("final|%", lambda row: _percent(row.measures["final_accuracy"])),
        Column(f"to {baseline}|points", lambda row: _percent(row.difference, "+.2f")),
        Column("train|time", lambda row: _spread(row.measures["train_seconds"], duration)),
        Column("wall|time", lambda row: _spread(row.measures["wall_seconds"], duration)),
        Column("images|/s", lambda row: _spread(row.measures["images_per_second"], _rate)),
        Column("speed|x", lambda row: _spread(row.speed, "{:.2f}".format)),
        Column(
            f"memory|MiB{footnote}",
            lambda row: _spread(row.measures["peak_memory_bytes"], _mebibytes),
        ),
        Column("skipped|steps", lambda row: _spread(row.measures["skipped_steps"], _count)),
        Column("non-|finite|at step", lambda row: (_step(row),)),
    ]


def _name_and_status(row: Row) -> Text:
    """Write what did not finish below the name, where it costs no width."""
    text = Text(row.recipe.replace("+", "+\n"), style="bold")
    if row.status != "finished":
        for part in row.status.split(", "):
            text.append(f"\n{part}", style=_STYLES.get(part.split()[-1], "yellow"))
    return text


def duration(seconds: float) -> str:
    """Write a duration in at most six characters: 9.4s, 3m07s, 2h05m."""
    if seconds < 99.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def _markdown_table(grid: Grid, results: Sequence[Result], rows: Sequence[Row]) -> str:
    recipe = Column("recipe", lambda row: (row.recipe,))
    seed = Column("seed", lambda row: (str(row.seed),))
    status = Column("status", lambda row: (row.status,))
    columns = [
        recipe,
        *([seed] if rows[0].seed is not None else []),
        *_columns(grid, results),
        status,
    ]
    headers = [column.header.replace("-|", "-").replace("|", " ") for column in columns]
    lines = [[_escape(header) for header in headers]]
    lines += [[":--" if header in ("recipe", "status") else "--:" for header in headers]]
    lines += [[_escape(" ".join(column.cell(row))) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escape(text: str) -> str:
    return re.sub(r"([\\`*_<|\[\]])", r"\\\1", text)


def _spread(spread: Spread | None, write: Callable[[float], str]) -> Cells:
    if spread is None:
        return (MISSING,)
    if spread.sd is None:
        return (write(spread.mean),)
    return write(spread.mean), f"±{write(spread.sd)}"


def _percent(spread: Spread | None, digits: str = ".2f") -> Cells:
    if spread is None:
        return (MISSING,)
    mean = format(100 * spread.mean, digits)
    mean = "0.00" if mean in ("+0.00", "-0.00") else mean
    return (mean,) if spread.sd is None else (mean, f"±{100 * spread.sd:.2f}")


def _rate(images_per_second: float) -> str:
    return f"{images_per_second:.1f}" if images_per_second < 100 else f"{images_per_second:.0f}"


def _count(number: float) -> str:
    return f"{number:.0f}" if number.is_integer() else f"{number:.1f}"


def _mebibytes(number: float) -> str:
    return f"{number / 2**20:.0f}"


def _step(row: Row) -> str:
    return MISSING if row.first_nonfinite_step is None else str(row.first_nonfinite_step)


def _on_cpu(results: Sequence[Result]) -> bool:
    return any(result.summary.get("peak_memory_kind") == "resident-rise" for result in results)
