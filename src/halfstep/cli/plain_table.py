"""Prints a table of text, as Markdown or for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, as_markdown: bool
) -> None:
    """Print a table."""
    if as_markdown:
        for cells in (columns, ("---",) * len(columns), *rows):
            typer.echo(f"| {' | '.join(cells)} |")
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE)
    for cells in rows:
        table.add_row(*cells)
    Console().print(table)
