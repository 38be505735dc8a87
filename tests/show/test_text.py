"""Sentences on a terminal end their lines between words; in a pipe, they are whole lines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from halfstep.show.text import print_code, print_text

PATH = "/a/path/that/is/longer/than/the/terminal/is/wide"
SENTENCE = f"fp16: 1.70 [1.33, 2.18] times as fast as [bold]tf32[/bold], see {PATH} for the rest"


def printed(function, *, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, width=30, force_terminal=terminal, color_system=None)
    function(console, SENTENCE)
    return file.getvalue()


def test_a_terminal_breaks_a_sentence_between_words_and_never_within_one() -> None:
    lines = printed(print_text, terminal=True).splitlines()
    assert " ".join(line.rstrip() for line in lines) == SENTENCE
    assert PATH in lines
    assert all(len(line) <= 30 for line in lines if PATH not in line)


@pytest.mark.parametrize(
    ("function", "terminal"), [(print_text, False), (print_code, False), (print_code, True)]
)
def test_a_pipe_gets_a_sentence_as_one_line_and_code_is_never_broken(function, terminal) -> None:
    assert printed(function, terminal=terminal) == f"{SENTENCE}\n"
