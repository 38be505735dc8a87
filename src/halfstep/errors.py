"""The one error that every floor raises for a mistake of the person at the keyboard.

The command line prints it as one line and exits with 2; a program that calls halfstep catches it as
the `ValueError` that it is.
"""

from __future__ import annotations

import difflib
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class UserError(ValueError):
    """Something given from outside is wrong; the message says what, where, and what to write."""


@contextmanager
def failing(said: str) -> Iterator[None]:
    """Turn whatever code of the user's raises, or that it exits, into an error in one line.

    Args:
        said: What fails, as the line begins.

    Raises:
        UserError: In place of what the block raises; one that it raises itself is left.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{said}: {in_a_line(error)}") from error


def in_a_line(error: BaseException, most: int = 200) -> str:
    """Return an error's type and what it says, in a line of so many characters."""
    return _cut(f"{type(error).__name__}: {error}", most)


def reason(error: BaseException, most: int = 200) -> str:
    """Return what an error says in a line of so many characters; its type if it says nothing."""
    return _cut(str(error), most) or type(error).__name__


def _cut(said: str, most: int) -> str:
    """Return the sentences, or else the words, that fit into a line of so many characters."""
    line = " ".join(said.split())
    if len(line) <= most:
        return line
    head = line[: most - 3]
    end = head.rfind(". ") + 1
    return head[:end] if end > most // 3 else head.rpartition(" ")[0] + " ..."


def closest(given: object, allowed: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the name nearest to `given`, or "" when none is near."""
    matches = difflib.get_close_matches(str(given), list(allowed), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def refuse_unknown(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise a `ValueError` for the first name of `given` that `known` does not have."""
    for name in given:
        if name not in known:
            raise ValueError(
                f"no {what} is named {name!r}; allowed: {', '.join(known)}{closest(name, known)}"
            )
