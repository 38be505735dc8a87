"""Iterates over the batches of an epoch, from any batch on, with any number of workers.

`order` makes the jobs, `loader` sends them to the workers, `samples` loads their batches there, and
the batches return in the order of the jobs. Or `device_images` makes them on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.feed import ImageCache
    from halfstep.train.data.pipeline.device_images import DeviceImages
    from halfstep.train.data.pipeline.loader import Loader
    from halfstep.train.data.pipeline.order import Order
    from halfstep.train.data.pipeline.samples import Loaded
    from halfstep.train.data.sources.faults import Faults

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images (N, channels, height, width), uint8 or fp32, and int64 labels (N,)."""


class Batches:
    """The batches of a split, for the training loop.

    Args:
        loader: Loads the batches of jobs: from files into the memory of the CPU, or from the memory
            of the device.
        order: Determines which images form which batch.
        faults: Receives the messages about images that cannot be read.
        cache: The cache of decoded images; None without one.

    Attributes:
        images: Number of images in the split.
    """

    def __init__(
        self,
        loader: Loader | DeviceImages,
        order: Order,
        *,
        faults: Faults,
        cache: ImageCache | None = None,
    ) -> None:
        self.images = order.images
        self._order = order
        self._faults = faults
        self._cache = cache
        self._loader = loader

    def hold(self) -> None:
        """Read the images that the device will hold; raise a UserError if they do not fit."""
        self._loader.hold()

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._order.batches

    def epoch(self, number: int = 1, start: int = 0) -> Iterator[Batch]:
        """Iterate over the batches of one epoch.

        Use one iterator at a time, because all epochs share the workers.

        Args:
            number: Number of the epoch, counted from 1. It determines the order and augmentation
                of a training split; it has no effect on a validation split.
            start: Number of the first batch, counted from 0. The batches are bitwise those that the
                whole epoch has from there on.

        Raises:
            UserError: If an image cannot be read and `faults` treats this as fatal, or if no image
                can be read.
        """
        if not 0 <= start <= len(self):
            raise ValueError(
                f"start is {start}; allowed: 0 to {len(self)}, the batches of an epoch"
            )
        if self._cache is not None:
            self._cache.warn_if_full()
        jobs = self._order.jobs(number if self._order.seed is not None else 0, start)
        return _readable(self._loader.load(jobs), self._faults)

    def idle(self, number: int) -> bool:
        """Tell whether this process has no part of a training batch, so its images do not count."""
        return self._order.idle(number)

    def size(self, labels: torch.Tensor) -> int:
        """Return the number of images that a batch with these labels has."""
        return len(labels)


def _readable(loaded: Iterator[Loaded], faults: Faults) -> Iterator[Batch]:
    """Report images that could not be read, and yield the batches of the other images."""
    empty = None
    yielded = False
    for batch in loaded:
        faults.report(batch.faults)
        if batch.mistake is not None:
            raise batch.mistake
        if len(batch.labels):
            yielded = True
            yield batch.images, batch.labels
        else:
            empty = batch
    if empty is not None and not yielded:
        raise UserError(f"not one image of a split can be read; one of them: {empty.faults[0]}")
