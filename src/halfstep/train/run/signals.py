"""Signals that request a run to stop: recorded on arrival, acted on between two micro-batches.

A job scheduler sends SIGTERM or SIGUSR1 some time before SIGKILL, and a user presses Ctrl-C. The
run first finishes the current update or checkpoint, so that nothing is lost. A second Ctrl-C waits
only for a checkpoint that is being written in the background.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar

from halfstep.train.task.in_step import Asked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from halfstep.train.task.task import Split, Task

_Item = TypeVar("_Item")
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGINT") if hasattr(signal, name)
)


class Stopped(Exception):  # noqa: N818  (not an error: the run was asked to)
    """A signal stopped the run; the message says what is saved and how to resume."""

    def __init__(self, number: int, line: str) -> None:
        super().__init__(line)
        self.number = number


class StopRequests:
    """Records stop signals while its block runs; outside the main thread it does nothing.

    Attributes:
        number: Number of the first signal that arrived, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                # None: not installed from Python, so that Python could not restore it.
                if handler not in {signal.SIG_IGN, None}:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def obeyed(self, task: Task) -> Task:
        """Return the task with batches whose iteration raises `Asked` after a signal."""
        data = task.data
        return task.obeying(_Obedient(data.train, self), _Obedient(data.val, self))

    def until_asked(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """Yield the items; after a signal, raise `Asked` instead of yielding the next one."""
        while True:
            if self.number is not None:
                raise Asked(self.number)
            try:
                item = next(items)
            except StopIteration:
                return
            except Exception:
                # Ctrl-C also ends the data workers, which raises an error here.
                if self.number is not None:
                    raise Asked(self.number) from None
                raise
            yield item

    def _note(self, number: int, frame: FrameType | None) -> None:
        again = number == signal.SIGINT and self.number is not None
        if self.number is None:
            self.number = number
        if again:
            before = self._before[number]
            (before if callable(before) else signal.default_int_handler)(number, frame)


class _Obedient:
    """Batches whose iteration raises `Asked` after a signal."""

    def __init__(self, batches: Split, requests: StopRequests) -> None:
        self.images, self.idle, self.size = batches.images, batches.idle, batches.size
        self._batches = batches
        self._requests = requests

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, number: int = 1, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """Iterate over the batches of one epoch; see `Batches`."""
        return self._requests.until_asked(self._batches.epoch(number, start))
