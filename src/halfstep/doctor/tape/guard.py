"""Keeps doctor's own work out of the record, and its errors out of the program."""

from __future__ import annotations

import threading
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from halfstep.doctor.tape.listener import Listener

TROUBLES = 20
_HEARD = 2
_identity = threading.get_ident


class Guard:
    """Tracks which code runs at the moment: the loop, torch, or doctor.

    Args:
        listener: The listener, which is muted while torch or doctor runs.

    Attributes:
        thread: Identifier of the loop's thread.
        troubles: Errors in doctor's own work, with their tracebacks.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.thread = threading.get_ident()
        self._inside = 0
        self._own = False
        self.troubles: list[str] = []

    @property
    def is_here(self) -> bool:
        """Whether this is the loop's thread, outside of doctor's own work."""
        return not self._own and _identity() == self.thread

    @property
    def is_own(self) -> bool:
        """Whether doctor runs."""
        return self._own

    @property
    def is_working(self) -> bool:
        """Whether doctor runs, and the current thread is the loop's."""
        return self._own and _identity() == self.thread

    @property
    def is_outside(self) -> bool:
        """Whether the loop itself runs, not a model or optimizer."""
        return self._inside == 0 and not self._own

    @property
    def is_inside(self) -> bool:
        """Whether a model or optimizer runs in the loop's thread."""
        return self._inside > 0 and not self._own and _identity() == self.thread

    def own(self) -> _Own:
        """Return a context for doctor's own work, which notes errors and does not raise them."""
        return _Own(self)

    def note(self, error: Exception) -> None:
        """Note an error in doctor's own work."""
        if len(self.troubles) < TROUBLES:
            said = traceback.format_exception(type(error), error, error.__traceback__)
            self.troubles.append("".join(said))

    @property
    def is_in_loss(self) -> bool:
        """Whether a loss of the program runs, whose calls are heard."""
        return self._inside == _HEARD and not self._own

    def inside(self, *, heard: bool = False) -> Inside:
        """Return a context for a model or for torch, whose calls are not calls of the loop.

        Args:
            heard: Whether they are heard all the same.
        """
        return Inside(self, heard=heard)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Return a context for code of the loop that torch runs: a closure of an optimizer."""
        before, self._inside = self._inside, 0
        try:
            with self.listener.unmuted():
                yield
        finally:
            self._inside = before

    @contextmanager
    def as_the_loop(self) -> Iterator[None]:
        """Return a context for code of the loop that doctor runs."""
        own = self.set_own(own=False)
        try:
            with self.outside():
                yield
        finally:
            self.set_own(own)

    def set_own(self, own: bool) -> bool:  # for `_Own` alone
        """Set whether doctor runs, and return the previous value."""
        before, self._own = self._own, own
        return before

    def set_inside(self, inside: int) -> int:
        """Set whether a model or optimizer runs (1, or 2 if it is heard), and return what was."""
        before, self._inside = self._inside, inside
        return before

    def leave(self) -> None:
        """Stop watching for good: at the end of a watch, and in a forked process."""
        self.thread = -1
        self.listener.stop()


# Contexts as classes: each step enters a dozen, and a generator would take five times as long.


class _Own:
    __slots__ = ("_before", "_guard", "_muted")

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        self._before = self._guard.set_own(True)
        self._muted = self._guard.listener.mute()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        guard = self._guard
        guard.listener.unmute(self._muted)
        guard.set_own(self._before)
        if not isinstance(error, Exception):
            return False
        guard.note(error)
        return True  # An error of doctor must not stop the program.


class Inside:
    """The context manager that `Guard.inside` returns."""

    __slots__ = ("_before", "_guard", "_heard", "_muted")

    def __init__(self, guard: Guard, *, heard: bool = False) -> None:
        self._guard, self._heard = guard, heard

    def __enter__(self) -> None:
        guard = self._guard
        self._before = guard.set_inside(_HEARD if self._heard else 1)
        self._muted = None if self._heard else guard.listener.mute()

    def __exit__(self, *_: object) -> None:
        self._guard.listener.unmute(self._muted)
        self._guard.set_inside(self._before)
