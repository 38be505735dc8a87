"""What a run writes while it trains on: a function in a thread of its own.

A process that is forked has only the thread that forked it, and every lock that another one held
stays held there. So a fork, as of the workers of a loader, waits until nothing is written.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")

_threads: set[threading.Thread] = set()


class Background(Generic[_Result]):
    """A call of a function that goes on beside the caller; the process does not end before it.

    Args:
        function: What is called, once.
    """

    def __init__(self, function: Callable[[], _Result]) -> None:
        self._function = function
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._call, name="halfstep writes")
        _threads.add(self._thread)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it has come to its end."""
        return not self._thread.is_alive()

    def result(self) -> _Result:
        """Wait for the end of the call, and return or raise what it did."""
        _join(self._thread)
        if self._error is not None:
            raise self._error
        return self._result

    def _call(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001  (raised by `result`)
            self._error = error


def wait() -> None:
    """Wait until nothing is written in the background of this process."""
    for thread in tuple(_threads):
        _join(thread)


def _join(thread: threading.Thread) -> None:
    thread.join()
    _threads.discard(thread)


os.register_at_fork(before=wait)
