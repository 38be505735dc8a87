"""Which images make which batch of which epoch: a function of the seed and the epoch alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class BatchShare:
    """Which part of each batch one of several processes takes; all of it by default, as in `WHOLE`.

    The batch that they make together is the one that a single process would have, cut into runs of
    equal length, give or take one, so that no image is lost and none comes twice.

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


@dataclass(frozen=True, slots=True)
class Job:
    """One batch to load.

    Attributes:
        epoch: The epoch it belongs to, counted from 1; 0 in validation.
        number: Its number within the epoch, counted from 0.
        indices: Its images, in order.
    """

    epoch: int
    number: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """How the images of a split come in batches.

    Attributes:
        images: Images in the split.
        batch_size: Images in a batch; the last one of an epoch may be smaller.
        seed: Decides the order of every epoch of training; None keeps the split's own order, for
            validation.
        part: Which part of each batch is wanted; `batch_size` counts all parts.
        drop_last: Whether training leaves out a smaller last batch.
    """

    images: int
    batch_size: int
    seed: int | None
    part: BatchShare = WHOLE
    drop_last: bool = False

    @property
    def batches(self) -> int:
        """Batches in an epoch."""
        # BatchNorm has no statistics of a single value, so in training a last batch of one image is
        # left out whatever the config says; not if it is the only one.
        left = self.images % self.batch_size
        fewest_left_out = self.batch_size - 1 if self.drop_last else 1
        dropped = self.seed is not None and self.images > self.batch_size
        return self.images // self.batch_size + (
            left > 0 and not (dropped and left <= fewest_left_out)
        )

    def jobs(self, epoch: int, start: int = 0) -> Iterator[Job]:
        """Yield the batches of an epoch from number `start` on.

        A shuffled epoch has the order that torch's own `DataLoader(shuffle=True)` has in it, with a
        generator of this seed and no workers. Batches of which this process has no part are left
        out in validation; in training it gets a dummy batch, whose images do not count.
        """
        order = torch.arange(self.images) if self.seed is None else self._shuffled(epoch)
        for number in range(start, self.batches):
            if self.seed is None and self.part.is_idle(self._size(number)):
                continue
            first = number * self.batch_size
            together = order[first : first + self.batch_size]
            indices = tuple(together[self.part.span(len(together))].tolist())
            yield Job(epoch, number, indices)

    def idle(self, number: int) -> bool:
        """Tell whether the images of a training batch that this process has do not count."""
        return self.seed is not None and self.part.is_idle(self._size(number))

    def _size(self, number: int) -> int:
        return min(self.batch_size, self.images - number * self.batch_size)

    def _shuffled(self, epoch: int) -> torch.Tensor:
        assert self.seed is not None
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(1, epoch):
            self._one_epoch(generator)
        return self._one_epoch(generator)

    def _one_epoch(self, generator: torch.Generator) -> torch.Tensor:
        # What a DataLoader draws in an epoch: a seed for its workers, the order, and one more order
        # of which its sampler takes nothing.
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        order = torch.randperm(self.images, generator=generator)
        torch.randperm(self.images, generator=generator)
        return order
