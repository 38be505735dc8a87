"""Prints a bench on a terminal: the table, notes, the folder of the files, the recommendation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from halfstep.bench.outcome import REPORT, RESULTS
from halfstep.show.table import new_table, print_whole
from halfstep.show.text import print_text

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from halfstep.bench.outcome import Outcome


def show(console: Console, outcome: Outcome, directory: Path) -> None:
    """Print a bench; the recommendation is the last line. Piped output is not wrapped."""
    console.print()
    print_text(console, outcome.subject.title, "bold")
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
        print_text(console, note, "dim")
    print_text(console, f"{RESULTS} and {REPORT} are in {directory}")
    print_text(console, outcome.recommendation, "bold")
