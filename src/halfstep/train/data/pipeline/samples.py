"""What a worker does: turn the indices of a batch into a batch.

It has no memory of its own, so that any worker, or the training process itself, makes the same
batch from the same job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils.data import Dataset

from halfstep.errors import UserError
from halfstep.train.data.sources.decode import CorruptImage
from halfstep.train.data.sources.seeding import seeded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.train.data.pipeline.order import Job
    from halfstep.train.data.sources.source import Split

Transform = Callable[[torch.Tensor], torch.Tensor]
"""From a uint8 (channels, height, width) image of any size to one of the final size."""
Shape = tuple[int, int, int]
"""Channels, height, width."""
LEAST = 2
"""Images of a training batch at least: BatchNorm has no statistics of a single value."""


class Loaded(NamedTuple):
    """What a job comes back as.

    Attributes:
        images: (N, channels, height, width), uint8 or fp32.
        labels: int64 (N,).
        faults: A line on each image that could not be read.
        mistake: What makes going on senseless; raised in the training process, since an error that
            leaves a worker is buried in its traceback.
    """

    images: torch.Tensor
    labels: torch.Tensor
    faults: tuple[str, ...]
    mistake: UserError | None


def refuse_shape(image: torch.Tensor, shape: Shape, where: Callable[[], str]) -> None:
    """Refuse an image that is unlike the others of its set.

    Args:
        image: As its source has it: fp32 is ready, and uint8 will get its size.
        shape: What the model sees.
        where: What messages call the image.

    Raises:
        UserError: If its channels, or if it is ready its size, are others.
    """
    compared = 1 if image.dtype == torch.uint8 else len(shape)
    if image.shape[:compared] != shape[:compared]:
        raise UserError(
            f"{where()} has the shape {tuple(image.shape)} and others have {shape} "
            "(channels, height, width); make all grey or all RGB, and of one size"
        )


@dataclass(slots=True)
class Collector:
    """Takes the images of a job one by one, and the faults of those that have some.

    Attributes:
        shape: What every image must have in the end.
        transform: What is done to uint8 images; fp32 ones are ready.
    """

    shape: Shape
    transform: Transform | None
    images: list[torch.Tensor] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def take(self, read: Callable[[], tuple[torch.Tensor, int]], where: Callable[[], str]) -> None:
        """Read and transform one image.

        Raises:
            UserError: If the image can be read and is not what it should be.
        """
        try:
            image, label = read()
        except CorruptImage as fault:
            self.faults.append(str(fault))
            return
        except OSError as fault:
            self.faults.append(f"{where()} cannot be read: {fault}")
            return
        refuse_shape(image, self.shape, where)
        if self.transform is not None and image.dtype == torch.uint8:
            image = self.transform(image)
        self.images.append(image)
        self.labels.append(label)

    def loaded(self, mistake: UserError | None = None) -> Loaded:
        """Return what was taken as one batch."""
        images = torch.stack(self.images) if self.images else torch.empty(0, dtype=torch.uint8)
        labels = torch.tensor(self.labels, dtype=torch.int64)
        return Loaded(images, labels, tuple(self.faults), mistake)


@dataclass(frozen=True, slots=True)
class Samples(Dataset[Loaded]):
    """The images of a split, a batch at a time.

    Attributes:
        split: Where they come from.
        shape: Of an image in the end.
        transform: What is done to uint8 images; None where the split has them ready.
        seed: Decides augmentation, with the epoch and the image's index.
        refill: Whether a batch that unreadable images leave with fewer than two takes the images
            that follow in the split, so that it still depends on the job alone.
    """

    split: Split
    shape: Shape
    transform: Transform | None
    seed: int
    refill: bool

    def __getitem__(self, job: Job) -> Loaded:
        """Load a batch; images that cannot be read are left out and reported."""
        wanted = len(job.indices)
        batch = Collector(self.shape, self.transform)
        try:
            for place, index in enumerate(chain(job.indices, self._spares(job))):
                if place >= wanted and len(batch.images) >= min(wanted, LEAST):
                    break
                self._take(batch, job.epoch, index)
        except UserError as error:
            return batch.loaded(mistake=error)
        return batch.loaded()

    def _spares(self, job: Job) -> Iterator[int]:
        if self.refill:
            after = job.indices[-1] + 1
            taken = set(job.indices)
            candidates = ((after + step) % len(self.split) for step in range(len(self.split)))
            yield from (index for index in candidates if index not in taken)

    def _take(self, batch: Collector, epoch: int, index: int) -> None:
        def read() -> tuple[torch.Tensor, int]:
            return self.split.read(index)

        def where() -> str:
            return self.split.where(index)

        if self.transform is None:
            batch.take(read, where)
            return
        with seeded(self.seed, epoch, index):
            batch.take(read, where)
