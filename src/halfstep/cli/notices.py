"""Warnings of halfstep as one line on stderr, without the source line that Python adds."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def in_one_line() -> Iterator[None]:
    """While the block runs, print halfstep's warnings as "warning: ..."; others are unchanged."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if category.__module__.startswith("halfstep."):
                typer.echo(f"warning: {' '.join(str(message).split())}", err=True)
            else:
                usual(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield
