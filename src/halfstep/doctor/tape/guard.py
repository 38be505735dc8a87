"""Doctor's own work: not heard, not an event of the program, and never a reason for it to stop."""

from __future__ import annotations

import threading
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.tape.listener import Listener

TROUBLES = 20


class Guard:
    """Knows whose work is done at the moment: the loop's, torch's, or doctor's.

    Args:
        listener: Is muted in all but the loop's.

    Attributes:
        troubles: Errors in doctor's own work, with their tracebacks.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._thread = threading.get_ident()
        self._inside = 0
        self._own = False
        self.troubles: list[str] = []

    @property
    def is_here(self) -> bool:
        """Whether this is the loop's thread, and not doctor's own work."""
        return not self._own and threading.get_ident() == self._thread

    @property
    def is_own(self) -> bool:
        """Whether doctor works."""
        return self._own

    @property
    def is_outside(self) -> bool:
        """Whether it is the loop that works, and no model or optimizer."""
        return self._inside == 0 and not self._own

    @property
    def is_inside(self) -> bool:
        """Whether a model or optimizer works, in the loop's thread."""
        return self._inside > 0 and not self._own and threading.get_ident() == self._thread

    @contextmanager
    def own(self) -> Iterator[None]:
        """Do doctor's own work; an error in it is noted and goes no further."""
        before, self._own = self._own, True
        try:
            with self._listener.mute():
                yield
        except Exception:  # noqa: BLE001  # the program must not stop for it
            if len(self.troubles) < TROUBLES:
                self.troubles.append(traceback.format_exc())
        finally:
            self._own = before

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Let torch or a model work: what they call is not called by the loop."""
        self._inside += 1
        try:
            with self._listener.mute():
                yield
        finally:
            self._inside -= 1

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Let the loop work again, inside of torch: a closure that an optimizer calls."""
        before, self._inside = self._inside, 0
        try:
            with self._listener.unmuted():
                yield
        finally:
            self._inside = before

    def leave_process(self) -> None:
        """Do nothing any more, in a process that was forked off."""
        self._thread = -1
        self._listener.stop()
