"""Which part of each batch one of several processes takes.

The batch that they make together is the one that a single process would have; its images are cut
into runs of equal length, give or take one, so that none is lost and none comes twice.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchShare:
    """One process's part of every batch; all of it by default, as in `WHOLE`.

    Attributes:
        rank: Which process, from 0.
        size: How many there are.
        least: Images that a process must have to take part. Where a batch has too few for all of
            them, the last processes are idle.
    """

    rank: int = 0
    size: int = 1
    least: int = 1

    def span(self, images: int) -> slice:
        """Return where in a batch of so many images this process's are.

        An idle process, too, is given some: those that the first one starts with.
        """
        busy = self._busy(images)
        if self.rank >= busy:
            return slice(0, self.least)
        each, more = divmod(images, busy)
        first = self.rank * each + min(self.rank, more)
        return slice(first, first + each + (self.rank < more))

    def is_idle(self, images: int) -> bool:
        """Tell whether none of so many images is this process's."""
        return self.rank >= self._busy(images)

    def _busy(self, images: int) -> int:
        return max(1, min(self.size, images // self.least))


WHOLE = BatchShare()
