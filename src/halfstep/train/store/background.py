"""Runs a function in a background thread, so that a run can write files while it trains.

A forked process has only the thread that called fork, and locks that other threads held stay locked
in it forever. So a fork, for example of data workers, waits until no background thread is running.
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
    """A call of a function in a thread. The process does not exit before the call has ended.

    Args:
        function: The function, which is called once.
    """

    def __init__(self, function: Callable[[], _Result]) -> None:
        self._function = function
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._call, name="halfstep writes")
        _threads.add(self._thread)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return not self._thread.is_alive()

    def result(self) -> _Result:
        """Wait for the call to end, and return its result or raise its exception."""
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
    """Wait until no background thread of this process is running."""
    for thread in tuple(_threads):
        _join(thread)


def _join(thread: threading.Thread) -> None:
    thread.join()
    _threads.discard(thread)


os.register_at_fork(before=wait)
