"""Prints a bench on a terminal: the table, notes, the folder of the files, the recommendation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from halfstep.bench.outcome import REPORT, RESULTS
from halfstep.show.table import new_table, print_whole

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from halfstep.bench.outcome import Outcome


def show(console: Console, outcome: Outcome, directory: Path) -> None:
    """Print a bench; the recommendation is the last line. Piped output is not wrapped."""
    wrapped = console.is_terminal
    console.print()
    console.print(Text(outcome.subject.title, style="bold"), soft_wrap=not wrapped)
    table = new_table()
    for number, header in enumerate(outcome.headers):
        text = number < outcome.texts
        table.add_column(header.replace("|", "\n"), justify="left" if text else "right")
    for row in outcome.rows:
        table.add_row(
            *(
                Text("\n".join(filter(None, (cell.text, cell.spread))), "bold" if n == 0 else "")
                for n, cell in enumerate(row)
            )
        )
    print_whole(console, table)
    console.print()
    for note in outcome.notes:
        console.print(Text(note, style="dim"), soft_wrap=not wrapped)
    console.print(Text(f"{RESULTS} and {REPORT} are in {directory}"), soft_wrap=True)
    console.print(Text(outcome.recommendation, style="bold"), soft_wrap=not wrapped)
