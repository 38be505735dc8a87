"""Prints sentences: a terminal shows them with lines broken between words; a pipe, unbroken."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console


def print_text(console: Console, text: str, style: str = "") -> None:
    """Print a sentence; on a terminal, no line ends within a word, a path or a name."""
    if console.is_terminal:
        text = textwrap.fill(
            text,
            max(console.width, 20),
            subsequent_indent=" " * (len(text) - len(text.lstrip())),
            break_long_words=False,  # as rich would, also in a path that is to be copied
            break_on_hyphens=False,
        )
    print_code(console, text, style)


def print_code(console: Console, code: str, style: str = "") -> None:
    """Print lines that a user copies, as they are."""
    console.print(Text(code, style=style), soft_wrap=True)
