"""Names settings in messages as the caller writes them: as options of a command, or in Python.

A message that says what to write instead names a config field or an argument through these
functions. The same message then says `--options epochs=3` on the command line, and
`overrides={"epochs": 3}` in a Python program. `through` says which one the caller uses.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class FrontEnd(Protocol):
    """One way to call halfstep.

    Attributes:
        traceback: Says where the traceback of the user's own code is.
    """

    traceback: str

    def name(self, argument: str) -> str:
        """Return an argument of `halfstep.train` and the like, as the caller calls it."""

    def setting(self, arguments: Mapping[str, Any]) -> str:
        """Return the text that gives these values to arguments."""

    def fields(self, values: Mapping[str, Any]) -> str:
        """Return the text that gives these values to fields of the config, by dotted name."""


class Python:
    """Calls of functions such as `halfstep.train`."""

    traceback = "the traceback shows where"

    def name(self, argument: str) -> str:
        """Return the name of the argument."""
        return argument

    def setting(self, arguments: Mapping[str, Any]) -> str:
        """Return keyword arguments, such as `resume="auto"`."""
        return ", ".join(f"{name}={_literal(value)}" for name, value in arguments.items())

    def fields(self, values: Mapping[str, Any]) -> str:
        """Return the argument `overrides`, such as `overrides={"epochs": 3}`."""
        pairs = (f"{_literal(name)}: {_literal(value)}" for name, value in values.items())
        return f"overrides={{{', '.join(pairs)}}}"


_front_ends: list[FrontEnd] = [Python()]


@contextmanager
def through(front_end: FrontEnd) -> Iterator[None]:
    """Word the messages of the block, in all threads, for callers of this front end."""
    _front_ends.append(front_end)
    try:
        yield
    finally:
        _front_ends.pop()


def name(argument: str) -> str:
    """Return an argument as the caller calls it: `--resume` or `resume`.

    The argument with which fields of a config are set is called "overrides".
    """
    return _front_ends[-1].name(argument)


def setting(**arguments: Any) -> str:
    """Return what to write to set arguments: `--resume auto` or `resume="auto"`.

    The value `...` stands for a value that the user chooses.
    """
    return _front_ends[-1].setting(arguments)


def fields(values: Mapping[str, Any]) -> str:
    """Return what to write to set fields: `--options epochs=3` or `overrides={"epochs": 3}`.

    Args:
        values: Plain data by dotted name; `...` stands for a value that the user chooses.
    """
    return _front_ends[-1].fields(values)


def traceback() -> str:
    """Return a phrase that says how to see the traceback of an error in the user's own code."""
    return _front_ends[-1].traceback


def _literal(value: Any) -> str:
    if value is ...:
        return "..."
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
