"""Prints the progress of a watch on stderr while the program runs.

On a terminal, the progress is one line, which is cleared before the program writes. It is drawn
again when the program's output ends with a newline and the program has written nothing for a
second. Without a terminal, a line is printed every half minute. For a program that ends within a
few seconds, nothing is printed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

TICK = 1.0
FIRST_LIVE = 5.0
EVERY = 30.0
"""Seconds: between two checks, before the first live line, between lines without a terminal."""
COLUMNS = 80
_CLEAR = "\r\033[2K"


class Stream:
    """Replaces the `write` method of an output stream, to notice the program's writes.

    Args:
        stream: The stream; the program keeps using this object.
        before: A function that is called before each write of the program.

    Attributes:
        at_start: Whether the program's output so far ends with a newline, or is empty.
    """

    def __init__(self, stream: TextIO, before: Callable[[], None]) -> None:
        self._stream, self._before = stream, before
        self._write, self._process = stream.write, os.getpid()
        self.at_start = True
        setattr(stream, "write", self._written)  # noqa: B010  # a method of a class in C

    def _written(self, text: str) -> int:
        if os.getpid() == self._process:  # A forked process shows no progress.
            self._before()
            if text:
                self.at_start = text.endswith("\n")
        return self._write(text)

    def show(self, text: str) -> None:
        """Write text of doctor to the stream."""
        with contextlib.suppress(OSError, ValueError):  # The stream or its reader may be closed.
            # Past the stream's buffer, because a process forked now would inherit its lock.
            os.write(self._stream.fileno(), text.encode())

    def release(self) -> None:
        """Restore the stream's own `write`."""
        if getattr(self._stream, "write", None) == self._written:
            delattr(self._stream, "write")


class Progress:
    """Shows the progress of a program while a `with` block runs.

    Args:
        state: A function that returns the progress as text; it is called in another thread.
        clock: A function that returns the time in seconds.
    """

    def __init__(
        self, state: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._state, self._clock = state, clock
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="halfstep doctor", daemon=True)
        self._begun = self._shown_at = clock()
        self._silent = self._drawn = False
        self._live = _is_terminal(sys.stdout) and _is_terminal(sys.stderr)
        streams = [sys.stdout, sys.stderr] if self._live else [sys.stderr]
        self._streams = [Stream(each, self._make_room) for each in streams if each is not None]

    def __enter__(self) -> Self:
        if self._streams and os.environ.get("RANK", "0") == "0":
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            self._make_room()
            for each in self._streams:
                each.release()

    def _run(self) -> None:
        while not self._ended.wait(TICK):
            self.look()

    def look(self) -> None:
        """Show the current progress, if it is due."""
        with self._lock:
            now, silent = self._clock(), self._silent
            self._silent = True
            if not self._live:
                if now - self._shown_at >= EVERY:
                    self._shown_at = now
                    start = "" if self._streams[-1].at_start else "\n"
                    self._streams[-1].show(f"{start}{self._line(now)}\n")
            elif (
                now - self._begun >= FIRST_LIVE
                and (silent or self._drawn)
                and all(each.at_start for each in self._streams)
            ):
                text = self._line(now)[: _columns() - 1]
                self._streams[-1].show(f"{_CLEAR}{text}")
                self._drawn = True

    def _line(self, now: float) -> str:
        minutes, seconds = divmod(int(now - self._begun), 60)
        after = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
        return f"doctor, after {after}: {self._state()}"

    def _make_room(self) -> None:
        """Clear the progress line before the program writes."""
        with self._lock:
            self._silent = False
            if self._drawn:
                self._drawn = False
                self._streams[-1].show(_CLEAR)


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _columns() -> int:
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    return COLUMNS
