"""`UserError`, which every layer raises for a mistake in the user's input, and its messages.

The command line prints a `UserError` as one line and exits with code 2. A program that calls
halfstep can catch it as a `ValueError`.
"""

from __future__ import annotations

import difflib
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class UserError(ValueError):
    """An input is wrong. The message says what is wrong, where, and what to write instead."""


@contextmanager
def failing(said: str) -> Iterator[None]:
    """Convert exceptions and `SystemExit` of the user's code into a one-line `UserError`.

    Args:
        said: Start of the message: it says what failed.

    Raises:
        UserError: If the block raises an `Exception` or `SystemExit`. A `UserError` of the block
            passes through unchanged.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{said}: {in_a_line(error)}") from error


def in_a_line(error: BaseException, most: int = 200) -> str:
    """Return the type and message of an error in one line of at most `most` characters."""
    name = type(error).__name__
    return _cut(f"{name}: {error}" if str(error).strip() else name, most)


def reason(error: BaseException, most: int = 200) -> str:
    """Return the message of an error, or its type if it has none, in at most `most` characters."""
    return _cut(str(error), most) or type(error).__name__


def _cut(said: str, most: int) -> str:
    """Shorten a text to one line of at most `most` characters, after a sentence or else a word."""
    line = " ".join(said.split())
    if len(line) <= most:
        return line
    head = line[: most - 3]
    end = head.rfind(". ") + 1
    return head[:end] if end > most // 3 else head.rpartition(" ")[0] + " ..."


def closest(given: object, allowed: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the name closest to `given`, or "" if none is close."""
    matches = difflib.get_close_matches(str(given), list(allowed), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def refuse_unknown(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise a `ValueError` for the first name in `given` that is not in `known`."""
    for name in given:
        if name not in known:
            raise ValueError(
                f"no {what} is named {name!r}; allowed: {', '.join(known)}{closest(name, known)}"
            )
