"""Determines which images form which batch; this depends only on the seed and the epoch.

torch is imported only for the order of an epoch: `halfstep init` asks for the number of batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


@dataclass(frozen=True, slots=True)
class BatchShare:
    """The part of each batch that one of several processes takes; by default the whole batch.

    The processes split the batch that a single process would have into contiguous parts, whose
    lengths differ by at most one. So no image is lost, and none is used twice.

    Attributes:
        rank: Rank of the process, from 0.
        size: Number of processes.
        least: Smallest number of images for one process. If a batch has too few images for all
            processes, the last processes are idle.
    """

    rank: int = 0
    size: int = 1
    least: int = 1

    def span(self, images: int) -> slice:
        """Return the slice of a batch of `images` images that this process takes.

        An idle process takes the first `least` images of the batch, which do not count.
        """
        busy = self._busy(images)
        if self.rank >= busy:
            return slice(0, self.least)
        share, more = divmod(images, busy)
        first = self.rank * share + min(self.rank, more)
        return slice(first, first + share + (self.rank < more))

    def is_idle(self, images: int) -> bool:
        """Tell whether this process has no part of a batch of `images` images."""
        return self.rank >= self._busy(images)

    def _busy(self, images: int) -> int:
        return max(1, min(self.size, images // self.least))


WHOLE = BatchShare()


@dataclass(frozen=True, slots=True)
class Job:
    """One batch to load.

    Attributes:
        epoch: Epoch of the batch, counted from 1; 0 in validation.
        number: Number of the batch within the epoch, counted from 0.
        indices: Indices of the images in the split, in the order of the batch.
    """

    epoch: int
    number: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """Divides the images of a split into batches.

    Attributes:
        images: Number of images in the split.
        batch_size: Number of images in a batch of all processes together; the last batch of an
            epoch may be smaller.
        seed: Determines the order of the images in each epoch of training; None keeps the order of
            the split, for validation.
        part: The part of each batch that this process takes.
        drop_last: Whether training drops the last batch of an epoch if it is smaller.
    """

    images: int
    batch_size: int
    seed: int | None
    part: BatchShare = WHOLE
    drop_last: bool = False

    @property
    def batches(self) -> int:
        """Number of batches in an epoch."""
        # BatchNorm has no statistics of a single value, so training always drops a last batch of
        # one image, unless it is the only batch.
        left = self.images % self.batch_size
        fewest_left_out = self.batch_size - 1 if self.drop_last else 1
        dropped = self.seed is not None and self.images > self.batch_size
        return self.images // self.batch_size + (
            left > 0 and not (dropped and left <= fewest_left_out)
        )

    def jobs(self, epoch: int, start: int = 0) -> Iterator[Job]:
        """Yield the jobs of an epoch from batch number `start` (from 0) on.

        A shuffled epoch has the same order as in torch's `DataLoader(shuffle=True)` with a
        generator of this seed and no workers. If this process has no part of a batch, validation
        skips the batch, and training yields a dummy batch whose images do not count.
        """
        import torch

        order = torch.arange(self.images) if self.seed is None else self._shuffled(epoch)
        for number in range(start, self.batches):
            if self.seed is None and self.part.is_idle(self._size(number)):
                continue
            first = number * self.batch_size
            together = order[first : first + self.batch_size]
            indices = tuple(together[self.part.span(len(together))].tolist())
            yield Job(epoch, number, indices)

    def idle(self, number: int) -> bool:
        """Tell whether this process has no part of a training batch, so its images do not count."""
        return self.seed is not None and self.part.is_idle(self._size(number))

    def _size(self, number: int) -> int:
        return min(self.batch_size, self.images - number * self.batch_size)

    def _shuffled(self, epoch: int) -> torch.Tensor:
        assert self.seed is not None
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(1, epoch):
            self._one_epoch(generator)
        return self._one_epoch(generator)

    def _one_epoch(self, generator: torch.Generator) -> torch.Tensor:
        import torch

        # Draw what a DataLoader draws in an epoch: a seed for its workers, the order, and a second
        # order that its sampler does not use.
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        order = torch.randperm(self.images, generator=generator)
        torch.randperm(self.images, generator=generator)
        return order
