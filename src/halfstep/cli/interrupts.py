"""Ctrl-C, even if a library turns it into another error.

During an import, a library may turn the KeyboardInterrupt into an error of its own. The Ctrl-C is
noted, so that the command still ends as an interrupted one.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """Notes a Ctrl-C while its block runs, and raises KeyboardInterrupt as Python does."""

    def __init__(self) -> None:
        self.seen = False
        self._noting = False

    def __enter__(self) -> Self:
        plain = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if plain and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._note)
            self._noting = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._noting:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.seen = True
        raise KeyboardInterrupt
