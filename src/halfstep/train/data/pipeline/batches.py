"""Epochs of batches, from any batch of any epoch on, by any number of workers.

Jobs (`order`) go to the workers (`loader`), are loaded there (`samples`), and come back in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.errors import UserError
from halfstep.train.data.pipeline.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.feed import ImageCache
    from halfstep.train.data.pipeline.order import Order
    from halfstep.train.data.pipeline.samples import Loaded, Samples
    from halfstep.train.data.sources.faults import Faults

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images (N, channels, height, width), uint8 or fp32, and int64 labels (N,), on the CPU."""


class Batches:
    """A split as the loop sees it.

    Args:
        samples: What loads a batch.
        order: Which images make which batch.
        workers: Processes that load; 0 loads in this one.
        pinned: Whether batches lie in page-locked memory, for copies to a GPU.
        faults: Where images that cannot be read are reported.
        cache: Where decoded images are kept, if anywhere.

    Attributes:
        images: Images in an epoch.
    """

    def __init__(
        self,
        samples: Samples,
        order: Order,
        *,
        workers: int,
        pinned: bool,
        faults: Faults,
        cache: ImageCache | None = None,
    ) -> None:
        self.images = order.images
        self._order = order
        self._faults = faults
        self._cache = cache
        self._loader = Loader(samples, workers=workers, pinned=pinned)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._order.batches

    def epoch(self, number: int = 1, start: int = 0) -> Iterator[Batch]:
        """Iterate over the batches of one epoch; one at a time, since epochs share the workers.

        Args:
            number: Of the epoch, counted from 1; it decides order and augmentation of a training
                split and nothing about a validation split.
            start: The first batch wanted: bitwise the tail of the whole epoch.

        Raises:
            UserError: If an image cannot be read and that is fatal, or if none can be read.
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
        """Tell whether this process's images of a batch do not count, as others have all of it."""
        return self._order.idle(number)


def _readable(loaded: Iterator[Loaded], faults: Faults) -> Iterator[Batch]:
    """Report the images that could not be read, and yield the batches that are left."""
    empty = None
    yielded = False
    for each in loaded:
        faults.report(each.faults)
        if each.mistake is not None:
            raise each.mistake
        if len(each.labels):
            yielded = True
            yield each.images, each.labels
        else:
            empty = each
    if empty is not None and not yielded:
        raise UserError(f"not one image of a split can be read; one of them: {empty.faults[0]}")
