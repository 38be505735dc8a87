"""Signals that ask a run to stop: noted when they come, obeyed between two micro-batches.

A scheduler that wants its machine back sends SIGTERM or SIGUSR1 some time before SIGKILL, and a
person presses Ctrl-C. Whatever is going on, the update or the checkpoint that is being made is
finished first, so that nothing is lost; a second Ctrl-C waits only for a checkpoint that is being
written in the background.
"""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from halfstep.train.data.pipeline.batches import Batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from halfstep.train.data import Data
    from halfstep.train.data.pipeline.batches import Batch

_Item = TypeVar("_Item")
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGINT") if hasattr(signal, name)
)


class Stopped(Exception):  # noqa: N818  (not an error: the run was asked to)
    """The run was asked to stop by a signal; the message says what is left, and how to go on."""

    def __init__(self, number: int, line: str) -> None:
        super().__init__(line)
        self.number = number


class StopRequests:
    """Notes the signals while its block runs; outside the main thread it notes none.

    Attributes:
        number: The first signal that came, or None.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                # None: installed by something other than Python, and not ours to put back.
                if handler not in {signal.SIG_IGN, None}:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def obeyed(self, data: Data) -> Data:
        """Return the data with batches that end with `Asked` when a signal has come."""
        return replace(data, train=_Obedient(data.train, self), val=_Obedient(data.val, self))

    def until_asked(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """Yield items, and raise `Asked` in place of the next one when a signal has come."""
        while True:
            if self.number is not None:
                raise Asked(self.number)
            try:
                item = next(items)
            except StopIteration:
                return
            except Exception:
                # Ctrl-C reaches the processes that load too, and their end is an error here.
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


class _Obedient(Batches):
    """Batches whose epochs are left when a signal has come."""

    def __init__(self, batches: Batches, requests: StopRequests) -> None:
        self.__dict__ |= vars(batches)
        self._requests = requests

    def epoch(self, number: int = 1, start: int = 0) -> Iterator[Batch]:
        """Iterate over the batches of one epoch; see `Batches`."""
        return self._requests.until_asked(super().epoch(number, start))


class Asked(Exception):  # noqa: N818  (control flow between loader and loop)
    """A signal came; raised between two batches."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
