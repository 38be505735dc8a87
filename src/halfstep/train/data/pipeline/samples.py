"""What a worker does: turn the indices of a batch into a batch.

It has no memory of its own, so that any worker, or the training process itself, makes the same
batch from the same job.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils.data import Dataset

from halfstep.errors import UserError
from halfstep.feed.decode import CorruptImage
from halfstep.train.data.sources.seeding import put_back, seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.train.data.pipeline.order import Job
    from halfstep.train.data.sources.source import Arrays, Split

Transform = Callable[[torch.Tensor], torch.Tensor]
"""From a uint8 (channels, height, width) image of any size to one of the final size."""
Shape = tuple[int, int, int]
"""Channels, height, width."""
LEAST = 2
"""Images of a training batch at least: BatchNorm has no statistics of a single value."""


class Loaded(NamedTuple):
    """The result of a job.

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


def refuse_shape(image: torch.Tensor, shape: Shape, split: Split, index: int) -> None:
    """Refuse an image unlike the others of its set; fp32 is ready, and uint8 will get its size."""
    compared = 1 if image.dtype == torch.uint8 else len(shape)
    if image.shape[:compared] != shape[:compared]:
        raise UserError(
            f"{split.where(index)} has the shape {tuple(image.shape)} and others have {shape} "
            "(channels, height, width); make all grey or all RGB, and of one size"
        )


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
        ready: All images of the split as the model wants them, if they are in memory.
    """

    split: Split
    shape: Shape
    transform: Transform | None
    seed: int
    refill: bool
    ready: Arrays | None = None

    def __getitem__(self, job: Job) -> Loaded:
        """Load a batch; images that cannot be read are left out and reported."""
        if self.ready is not None:
            indices = torch.tensor(job.indices)
            images = self.ready.images.index_select(0, indices)
            return Loaded(images, self.ready.labels.index_select(0, indices), (), None)
        return self._one_by_one(job)

    def _one_by_one(self, job: Job) -> Loaded:
        wanted = len(job.indices)
        images: list[torch.Tensor] = []
        labels: list[int] = []
        faults: list[str] = []
        mistake = None
        try:
            with put_back() if self.transform else nullcontext():
                for place, index in enumerate(chain(job.indices, self._spares(job))):
                    if place >= wanted and len(images) >= min(wanted, LEAST):
                        break
                    try:
                        image, label = self._read(job.epoch, index)
                    except CorruptImage as fault:
                        faults.append(str(fault))
                    except OSError as fault:
                        faults.append(f"{self.split.where(index)} cannot be read: {fault}")
                    else:
                        images.append(image)
                        labels.append(label)
        except UserError as error:
            mistake = error
        stacked = torch.stack(images) if images else torch.empty(0, dtype=torch.uint8)
        return Loaded(stacked, torch.tensor(labels, dtype=torch.int64), tuple(faults), mistake)

    def _spares(self, job: Job) -> Iterator[int]:
        if self.refill:
            after = job.indices[-1] + 1
            taken = set(job.indices)
            candidates = ((after + step) % len(self.split) for step in range(len(self.split)))
            yield from (index for index in candidates if index not in taken)

    def _read(self, epoch: int, index: int) -> tuple[torch.Tensor, int]:
        """Return an image as the model wants it, and its label."""
        if self.transform is not None:
            seed(self.seed, epoch, index)
        image, label = self.split.read(index)
        refuse_shape(image, self.shape, self.split, index)
        if self.transform is not None and image.dtype == torch.uint8:
            image = self.transform(image)
        return image, label
