"""What all tables of measurements share: their style, their marks, and that no number is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

REHEARSED = "†"
"""The mark of a row whose format is rehearsed, so that its times are not those of the format."""


def one_line(header: str) -> str:
    """Return a header without its line breaks."""
    return header.replace("-|", "-").replace("|", " ")


def new_table() -> Table:
    """Return an empty table in the style of all tables of measurements."""
    return Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)


def print_whole(console: Console, table: Table) -> None:
    """Print a table without cutting numbers: a wide table extends beyond the console's edge."""
    table.width = width_of(console, table)
    console.print(table, crop=False, no_wrap=True)


def width_of(console: Console, table: Table) -> int:
    """Return the width that a table needs, in columns of the terminal."""
    return console.measure(table, options=console.options.update(width=10_000)).maximum
