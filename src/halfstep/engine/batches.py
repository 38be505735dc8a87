"""Loops over batches that know their last one, by looking one batch ahead."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Iterable

_Item = TypeVar("_Item")


class Batches(Iterator[_Item]):
    """An iterator that looks one batch ahead.

    Args:
        loader: What to iterate over; it is first asked for a batch when this iterator is.
        loops: The loops of the same engine.

    Attributes:
        is_last: Whether the batch given last is the last one.
        made_at: When the iterator was made, by the clock of `loops`.
        given_at: When it gave the last batch so far; before the first, when it was made.
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
    """The iterators that the loops of one engine go through, as long as they are in use.

    An iterator that ended, or was left early and dropped, does not count any more.
    """

    def __init__(self) -> None:
        self._clock = count()
        self._near_end = False
        self._going_on: WeakSet[Batches[Any]] = WeakSet()

    @property
    def at_last_batch(self) -> bool:
        """Whether a loop is at its last batch.

        Iterators that are advanced together (`zip`) end with the first that ends, so that the last
        batch of any of them counts. A loop inside another goes on beyond a batch of the outer one:
        the last batch of the outer loop counts where no iterator is in use that was made since.
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
        """Return a number larger than those before."""
        return next(self._clock)

    def go_on(self, batches: Batches[Any]) -> None:
        """Note an iterator that has given a batch."""
        self._going_on.add(batches)
        self._near_end = self._near_end or batches.is_last

    def end(self, batches: Batches[Any]) -> None:
        """Note an iterator that gives no more batches."""
        self._going_on.discard(batches)
