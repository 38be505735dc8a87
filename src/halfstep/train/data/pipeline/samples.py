"""Loads the images of a job as a batch, in a worker or in the training process.

Loading a job depends on no earlier job, so that any worker, or the training process itself, makes
the same batch from the same job.
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
from halfstep.feed.pixels import CorruptImage
from halfstep.train.data.sources.seeding import put_back, seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.train.data.pipeline.order import Job
    from halfstep.train.data.sources.source import Arrays, Split

Transform = Callable[[torch.Tensor], torch.Tensor]
"""Converts a uint8 image (channels, height, width) of any size to the final size."""
Shape = tuple[int, int, int]
"""Channels, height, width."""
LEAST = 2
"""Smallest number of images in a training batch: BatchNorm has no statistics of one value."""


class Loaded(NamedTuple):
    """The result of a job.

    Attributes:
        images: (N, channels, height, width), uint8 or fp32.
        labels: int64 (N,).
        faults: A line for each image that could not be read.
        mistake: An error of the data set that ends the run. The training process raises it, because
            torch would hide the message of an error that a worker raises in a long traceback.
    """

    images: torch.Tensor
    labels: torch.Tensor
    faults: tuple[str, ...]
    mistake: UserError | None


def refuse_shape(image: torch.Tensor, shape: Shape, split: Split, index: int) -> None:
    """Refuse an image that does not have `shape`.

    Of a uint8 image only the channels are checked, because it is resized later.
    """
    compared = 1 if image.dtype == torch.uint8 else len(shape)
    if image.shape[:compared] != shape[:compared]:
        raise UserError(
            f"{split.where(index)} has the shape {tuple(image.shape)} and others have {shape} "
            "(channels, height, width); make all grey or all RGB, and of one size"
        )


@dataclass(frozen=True, slots=True)
class Samples(Dataset[Loaded]):
    """Loads the images of a split, one batch for each job.

    Attributes:
        split: The images.
        shape: Shape of each image of a batch: channels, height, width.
        transform: Applied to uint8 images; None if the images of the split need no transform.
        seed: Determines the augmentation, together with the epoch and the image's index.
        refill: Whether a batch that has fewer than two readable images is filled with the images
            that follow in the split. The batch then still depends only on the job.
        ready: All images of the split, if they are in memory and need no transform; None otherwise.
    """

    split: Split
    shape: Shape
    transform: Transform | None
    seed: int
    refill: bool
    ready: Arrays | None = None

    def __getitem__(self, job: Job) -> Loaded:
        """Load a batch; images that cannot be read are left out and listed in `faults`."""
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
                for place, index in enumerate(chain(job.indices, self.spares(job))):
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

    def spares(self, job: Job) -> Iterator[int]:
        """Yield the images that fill a batch with too few readable ones."""
        if self.refill:
            after = job.indices[-1] + 1
            taken = set(job.indices)
            candidates = ((after + step) % len(self.split) for step in range(len(self.split)))
            yield from (index for index in candidates if index not in taken)

    def _read(self, epoch: int, index: int) -> tuple[torch.Tensor, int]:
        """Return an image after its transform, and its label."""
        if self.transform is not None:
            seed(self.seed, epoch, index)
        image, label = self.split.read(index)
        refuse_shape(image, self.shape, self.split, index)
        if self.transform is not None and image.dtype == torch.uint8:
            image = self.transform(image)
        return image, label
