"""Prints a comparison on a terminal: the table, the verdict on each row, and a few notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from halfstep.compare.output.columns import columns, name, title
from halfstep.compare.output.notes import notes, warnings
from halfstep.compare.rows import predicted as of_gpus
from halfstep.compare.rows.one_seed import conclusions
from halfstep.compare.rows.rows import rows_by_arm
from halfstep.compare.rows.verdict import verdicts
from halfstep.show.table import new_table, print_whole, width_of
from halfstep.show.text import print_code, print_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from halfstep.compare.cells.results import Result
    from halfstep.compare.output.columns import Column
    from halfstep.compare.plan.grid import Grid
    from halfstep.compare.rows.one_seed import Conclusions
    from halfstep.compare.rows.predicted import Prediction
    from halfstep.compare.rows.rows import Row

_STYLES = {"finished": "green", "pending": "dim", "crashed": "bold red"}
_LEAST_IMPORTANT = ("wall_seconds", "", "peak_memory_bytes", "images_per_second")
"""The keys of the columns that a narrow terminal leaves out, in this order; "": the last score."""

MOST_NOTES = 3
"""The number of notes on a terminal; all others are only in the files."""


def show(
    console: Console, grid: Grid, results: Sequence[Result], predicted: Sequence[Prediction] = ()
) -> None:
    """Print the comparison: the table, the result, predictions in separate tables, and notes.

    The table has the main columns, or fewer on a narrow terminal, and only the most important notes
    are printed; one line says what only the files have. Numbers are never cut: a table that is
    still too wide extends beyond the edge of the console. Output to a pipe is not wrapped.
    """
    rows = rows_by_arm(grid, results)
    shown = _that_fit(console, grid, results, rows)
    concluded = conclusions(grid, rows, predicted)
    console.print()
    print_text(console, title(grid), "bold")
    print_whole(console, _table(grid, rows, shown))
    console.print()
    if concluded is not None:
        _print_conclusions(console, concluded)
    for verdict in verdicts(grid, rows, predicted) if concluded is None else concluded.verdicts:
        print_text(console, str(verdict))
    for prediction in predicted:
        console.print()
        print_text(console, f"{prediction.title}: nothing ran there", "bold magenta")
        print_whole(console, _predicted(prediction, grid, rows))
    console.print()
    lines = _notes(grid, results, predicted)
    for note in lines[:MOST_NOTES]:
        print_text(console, note, "dim")
    if more := _more(grid, results, shown, len(lines) - MOST_NOTES):
        print_text(console, more, "dim")
    if concluded is not None:
        _print_commands(console, concluded)


def _notes(grid: Grid, results: Sequence[Result], predicted: Sequence[Prediction]) -> list[str]:
    """Return all notes, first those on these runs and predictions, then those that hold for any."""
    first = [
        *warnings(grid, results),
        *(note for prediction in predicted for note in of_gpus.warnings(prediction)),
    ]
    every = [
        *notes(grid, results),
        *(note for prediction in predicted for note in of_gpus.notes(prediction)),
    ]
    return list(dict.fromkeys([*first, *every]))


def _print_conclusions(console: Console, concluded: Conclusions) -> None:
    """Print the conclusions from one seed, the answer first."""
    if concluded.answer:
        print_text(console, concluded.answer, "bold")
    print_text(console, concluded.caveat, "yellow")
    for fact in concluded.facts:
        print_text(console, fact)


def _print_commands(console: Console, concluded: Conclusions) -> None:
    """Print the next commands last, where they can be copied from."""
    console.print("Next:")
    for command, why in concluded.commands:
        print_code(console, f"  {command}", "cyan")
        print_text(console, f"      {why}", "dim")


def _that_fit(
    console: Console, grid: Grid, results: Sequence[Result], rows: Sequence[Row]
) -> list[Column]:
    """Return the main columns; on a terminal, only those that fit into its width."""
    shown = columns(grid, results, everything=False)
    for key in _LEAST_IMPORTANT:
        if not console.is_terminal or width_of(console, _table(grid, rows, shown)) <= console.width:
            break
        shown = [column for column in shown if column.key != (key or grid.score.final)]
    return shown


def _more(grid: Grid, results: Sequence[Result], shown: Sequence[Column], notes: int) -> str:
    """Return a line that names the columns, and counts the notes, that are only in the files."""
    here = {column.key for column in shown}
    left = [column for column in columns(grid, results, everything=True) if column.key not in here]
    parts = [f"{notes} more note{'s' if notes > 1 else ''}"] if notes > 0 else []
    if left:
        parts.append(f"the column{'s' if len(left) > 1 else ''} {', '.join(c.title for c in left)}")
    return f"table.md and report.html also have: {'; '.join(parts)}." if parts else ""


def _table(grid: Grid, rows: Sequence[Row], shown: Sequence[Column]) -> Table:
    table = new_table()
    table.add_column("recipe")
    for column in shown:
        table.add_column(column.header.replace("|", "\n"), justify="right")
    for number, row in enumerate(rows):
        table.add_row(
            _name_and_status(row),
            *("\n".join(column.cell(row)) for column in shown),
            end_section=len(grid.points) > 1 and (number + 1) % len(grid.recipes) == 0,
        )
    return table


def _predicted(prediction: Prediction, grid: Grid, rows: Sequence[Row]) -> Table:
    table = new_table()
    for header in of_gpus.headers(prediction, grid):
        is_text = header in ("recipe", of_gpus.BOUND, *grid.axes)
        table.add_column(header.replace("|", "\n"), justify="left" if is_text else "right")
    measured = 2 + len(grid.axes)
    for line in of_gpus.lines(prediction, rows):
        *figures, bound = line[measured:]
        table.add_row(
            *line[:measured],
            *(Text(figure, style="italic") for figure in figures),
            Text(bound.replace(", ", "\n"), style="italic"),
        )
    return table


def _name_and_status(row: Row) -> Text:
    """Return the name of a row, with its overrides and its status on lines below to save width."""
    text = Text(name(row).replace("+", "+\n"), style="bold")
    for override in row.arm.point:
        key, _, value = override.partition("=")
        text.append(f"\n{key.rpartition('.')[2]}=", style="dim")
        text.append(value)
    if row.status != "finished":
        for part in row.status.split(", "):
            text.append(f"\n{part}", style=_STYLES.get(part.split()[-1], "yellow"))
    return text
