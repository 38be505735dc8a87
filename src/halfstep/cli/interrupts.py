"""Records Ctrl-C, because a library may turn the KeyboardInterrupt into another error.

This happens during imports. The command must still end with the exit code of an interruption.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """Records a Ctrl-C while the block runs, and raises KeyboardInterrupt as Python does."""

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
