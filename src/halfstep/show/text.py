"""Prints sentences: a terminal shows them with lines broken between words; a pipe, unbroken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console


def print_text(console: Console, text: str, style: str = "") -> None:
    """Print a sentence; on a terminal, no line ends within a word, a path or a name."""
    console.print(
        Text(text, style=style),
        soft_wrap=not console.is_terminal,
        overflow="ignore",
        crop=False,
    )


def print_code(console: Console, code: str, style: str = "") -> None:
    """Print lines that a user copies, as they are."""
    console.print(Text(code, style=style), soft_wrap=True)
