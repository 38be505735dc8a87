"""Iterators over batches that recognize the last batch, because they fetch one batch ahead."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Iterable

_Item = TypeVar("_Item")


class Batches(Iterator[_Item]):
    """An iterator that fetches one batch ahead.

    Args:
        loader: The iterable of batches. It is not used before the first `next` of this iterator.
        loops: The loops of the same engine.

    Attributes:
        is_last: Whether the most recently returned batch is the last one.
        made_at: Time at which the iterator was created, by the clock of `loops`.
        given_at: Time at which it returned the most recent batch; before the first batch, the time
            at which it was created.
    """

    def __init__(self, loader: Iterable[_Item], loops: Loops) -> None:
        self.is_last = False
        self.made_at = loops.now()
        self.given_at = self.made_at
        self._loops = loops
        self._batches = self._ahead(loader)

    def __next__(self) -> _Item:
        try:
            batch, self.is_last = next(self._batches)
        except BaseException:
            self._loops.end(self)
            raise
        self.given_at = self._loops.now()
        self._loops.go_on(self)
        return batch

    @staticmethod
    def _ahead(loader: Iterable[_Item]) -> Iterator[tuple[_Item, bool]]:
        iterator = iter(loader)
        ahead = list(islice(iterator, 1))
        while ahead:
            batch = ahead.pop()
            ahead.extend(islice(iterator, 1))
            yield batch, not ahead


class Loops:
    """The iterators of one engine's loops that are in use.

    An iterator is removed when it ends, or when its loop was left early and it is
    garbage-collected.
    """

    def __init__(self) -> None:
        self._clock = count()
        self._near_end = False
        self._going_on: WeakSet[Batches[Any]] = WeakSet()

    @property
    def at_last_batch(self) -> bool:
        """Whether a loop is at its last batch.

        Iterators that advance together (`zip`) end when the first of them ends, so the last batch
        of any of them counts. In nested loops, the inner loop still has batches after the outer
        loop has received its last batch. So the last batch of an iterator does not count while
        another iterator is in use that was created after this batch was returned.
        """
        if not self._near_end:
            return False
        going_on = list(self._going_on)
        self._near_end = any(each.is_last for each in going_on)
        return any(
            each.is_last and not any(other.made_at > each.given_at for other in going_on)
            for each in going_on
        )

    def now(self) -> int:
        """Return the time of the clock, a counter that increases with each call."""
        return next(self._clock)

    def go_on(self, batches: Batches[Any]) -> None:
        """Record that an iterator has returned a batch."""
        self._going_on.add(batches)
        self._near_end = self._near_end or batches.is_last

    def end(self, batches: Batches[Any]) -> None:
        """Record that an iterator has ended."""
        self._going_on.discard(batches)
