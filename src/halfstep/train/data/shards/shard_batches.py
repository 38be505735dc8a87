"""Batches out of tar shards, in one order however many workers read them.

Each batch takes samples in turns from as many shards as are read side by side (`shards.positions`).
Every shard belongs to one worker; a worker returns its part of a batch, and the training process
puts the parts together. So the order is the same with any number of workers, no worker reads what
another does, and an epoch can start at any batch without a repeated or a lost sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from halfstep.errors import UserError
from halfstep.train.data.pipeline import order
from halfstep.train.data.pipeline.batches import readable
from halfstep.train.data.pipeline.loader import Loader
from halfstep.train.data.pipeline.samples import LEAST, Loaded
from halfstep.train.data.shards.shard_reader import PartJob, Position
from halfstep.train.data.shards.shards import positions as positions_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.train.data.pipeline.batches import Batch
    from halfstep.train.data.shards.shards import Positions, Shards
    from halfstep.train.data.shards.webdataset import ShardSamples
    from halfstep.train.data.sources.faults import Faults
    from halfstep.train.data.sources.part import BatchShare


class ShardBatches:
    """Batches of a split in shards; see `halfstep.train.data.pipeline.batches.Batches`.

    Args:
        of: The shards.
        samples: What loads them.
        interleave: Shards that are read side by side.
        batch_size: Images in a batch, of all processes together; the last one of an epoch may be
            smaller.
        part: Which part of each batch this process takes. It is made of whole shards as far as that
            leaves every process the same number of images.
        seed: Decides the order of every epoch of training; None keeps the order of the shards.
        workers: Processes that load; 0 loads in this one.
        pinned: Whether batches lie in page-locked memory.
        drop_last: Whether training leaves out a smaller last batch.
        faults: Where images that cannot be read are reported.
    """

    def __init__(
        self,
        of: Shards,
        samples: ShardSamples,
        *,
        interleave: int,
        batch_size: int,
        part: BatchShare,
        seed: int | None,
        workers: int,
        pinned: bool,
        faults: Faults,
        drop_last: bool = False,
    ) -> None:
        self.images = of.samples
        self._shards = of
        self._interleave = interleave
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._part = part
        self._seed = seed
        self._pinned = pinned
        self._faults = faults
        # One for each worker, so that a shard is always read by the same one.
        self._loaders = [
            Loader(samples, workers=min(workers, 1), pinned=False) for _ in range(max(workers, 1))
        ]

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        train = self._seed is not None
        return order.batches(self.images, self._batch_size, train=train, drop_last=self._drop_last)

    def epoch(self, number: int = 1, start: int = 0) -> Iterator[Batch]:
        """Iterate over the batches of one epoch, from `start` on."""
        if not 0 <= start <= len(self):
            raise ValueError(
                f"start is {start}; allowed: 0 to {len(self)}, the batches of an epoch"
            )
        if self._seed is None:
            number = 0
            positions = positions_of(self._shards, self._interleave)
        else:
            positions = positions_of(self._shards, self._interleave, self._seed, number)
        parts = [
            loader.load(self._parts(positions, number, start, worker))
            for worker, loader in enumerate(self._loaders)
        ]
        return readable(self._whole(parts), self._faults)

    def idle(self, number: int) -> bool:
        """Tell whether the images of a batch do not count; see `Batches`."""
        return self._seed is not None and self._part.is_idle(self._size(number))

    def _parts(
        self, positions: Positions, epoch: int, start: int, worker: int
    ) -> Iterator[PartJob]:
        """Yield what one worker loads of each batch, which may be nothing."""
        for batch in range(start, len(self)):
            if self._seed is None and self._part.is_idle(self._size(batch)):
                continue
            first = batch * self._batch_size
            span = slice(first, first + self._batch_size)
            lanes = positions.lanes[span]
            own = self._slots(lanes)
            own = own[lanes[own] // self._part.size % len(self._loaders) == worker]
            picked = zip(
                positions.shards[span][own].tolist(),
                positions.ranks[span][own].tolist(),
                strict=True,
            )
            places = tuple(
                Position(self._shards.urls[shard], shard, self._shards.counts[shard], rank)
                for shard, rank in picked
            )
            yield PartJob(epoch, places, tuple(own.tolist()))

    def _slots(self, lanes: np.ndarray) -> np.ndarray:
        """Return which images of a batch are this process's, in the batch's order."""
        by_process = np.argsort(lanes % self._part.size, kind="stable")
        return np.sort(by_process[self._part.span(len(lanes))])

    def _size(self, number: int) -> int:
        return min(self._batch_size, self.images - number * self._batch_size)

    def _whole(self, workers: list[Iterator[Loaded]]) -> Iterator[Loaded]:
        """Put the parts of each batch together in the batch's order."""
        for parts in zip(*workers, strict=True):
            mistakes = [part.mistake for part in parts if part.mistake is not None]
            faults = tuple(fault for part in parts for fault in part.faults)
            images, labels, slots = _joined(parts)
            if self._seed is not None and faults and len(labels) < LEAST:
                # Other samples are out of reach; and without the batch, the ones after it would
                # have other numbers than those that a checkpoint counts.
                mistakes.append(
                    UserError(
                        f"too few images of a batch can be read, {len(labels)}; "
                        f"leave out of the shards: {faults[0]}"
                    )
                )
            if self._pinned:
                images, labels = images.pin_memory(), labels.pin_memory()
            yield Loaded(images, labels, slots, faults, mistakes[0] if mistakes else None)


def _joined(
    parts: tuple[Loaded, ...],
) -> tuple[torch.Tensor, torch.Tensor, tuple[int, ...]]:
    """Return the images, labels and places of all parts in the batch's order."""
    there = [part for part in parts if len(part.labels)] or [parts[0]]
    slots = torch.tensor([slot for part in there for slot in part.places], dtype=torch.int64)
    in_order = slots.argsort()
    images = torch.cat([part.images for part in there])[in_order]
    labels = torch.cat([part.labels for part in there])[in_order]
    return images, labels, tuple(slots[in_order].tolist())
