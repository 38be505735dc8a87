"""All images of a split in the memory of the device, as uint8: no worker, no copy of a batch.

Images that are not cropped at random are held as the model sees them, pixel for pixel what the
loader makes of them. Images for random resized crops are held as they are, of any size, one after
the other. A batch depends only on its job, so it is the same on every device and after a resume.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import torch

from halfstep import step_observer
from halfstep.errors import UserError
from halfstep.kernels.accelerators import counts_memory
from halfstep.train import kept
from halfstep.train.data.pipeline import device_augment
from halfstep.train.data.pipeline.loader import Loader
from halfstep.train.data.pipeline.order import Job
from halfstep.train.data.pipeline.samples import LEAST, Loaded
from halfstep.train.data.sources.seeding import generator
from halfstep.train.data.sources.source import InMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.train.config.augment import Augmentation
    from halfstep.train.data.pipeline.samples import Samples
    from halfstep.train.data.sources.faults import Faults

_Read = tuple[list[torch.Tensor] | torch.Tensor, torch.Tensor, frozenset[int]]
"""The images on the CPU, in a list if they are of any size; the labels; the unreadable ones."""
_AT_ONCE = 1024
"""Images of an array that are resized at a time."""
_ESTIMATED_AFTER = 100
"""Images of files after which, again and again, the memory for all of them is estimated."""


@dataclass(slots=True)
class Room:
    """The memory of a device that the images of all splits may take.

    Attributes:
        device: The device.
        gigabytes: The limit, in units of 10^9 bytes.
        taken: Bytes that are in use.
    """

    device: torch.device
    gigabytes: float
    taken: int = 0

    def refuse(self, wanted: int) -> None:
        """Refuse images that are above the limit.

        Raises:
            UserError: If `wanted` more bytes are.
        """
        whole = (self.taken + wanted) / 1e9
        if whole > self.gigabytes:
            raise UserError(
                f"{_figure(whole)}, but data.cache_images_gigabytes is {self.gigabytes:g}; write "
                f"data.cache_images_gigabytes: {whole * 1.05:.2g}, a lower data.resolution, or "
                "data.cache_images: none"
            )

    def take(self, images: torch.Tensor) -> torch.Tensor:
        """Return images on the device; raise a UserError if they do not fit."""
        self.refuse(images.nbytes)
        counted = counts_memory(self.device)
        free = torch.accelerator.get_memory_info(self.device)[0] if counted else images.nbytes
        if images.nbytes > free:
            raise UserError(
                f"{_figure(images.nbytes / 1e9)}, but {self.device} has {free / 1e9:.3g} GB free; "
                "write a lower data.resolution, or data.cache_images: none"
            )
        self.taken += images.nbytes
        return images.to(self.device)


def _figure(gigabytes: float) -> str:
    return f"data.cache_images is device, and the images take {gigabytes:.3g} GB"


class _Held(NamedTuple):
    """The images of a split.

    Attributes:
        images: (images, channels, side, side), on the device; or flat, one image after the other.
        labels: int64, on the device.
        missing: The images that cannot be read; others have their places.
        starts: Where each image of a flat tensor starts, on the CPU; empty otherwise.
        heights: Their heights.
        widths: Their widths.
    """

    images: torch.Tensor
    labels: torch.Tensor
    missing: frozenset[int]
    starts: torch.Tensor
    heights: torch.Tensor
    widths: torch.Tensor


class DeviceImages:
    """Loads the batches of jobs from images on the device; see `Batches`.

    Args:
        samples: Reads the images; its transform, if any, is that of validation.
        settings: The augmentation of training images; None for validation, and for images without
            augmentation.
        room: The memory of the device.
        faults: Receives the messages about images that cannot be read.
        workers: Number of processes that read the images once, at the start.
        rank: Rank of this process, whose random numbers differ from those of the others.
    """

    def __init__(
        self,
        samples: Samples,
        settings: Augmentation | None,
        room: Room,
        faults: Faults,
        *,
        workers: int = 0,
        rank: int = 0,
    ) -> None:
        self._samples = samples
        self._settings = settings
        self._room = room
        self._report = faults.report
        self._workers = workers
        self._rank = rank
        self._held: _Held | None = None
        if settings is not None:
            device_augment.refuse(settings)
        if not self._of_any_size:
            channels, height, width = samples.shape
            room.refuse(len(samples.split) * channels * height * width)

    @property
    def _of_any_size(self) -> bool:
        return self._settings is not None and self._settings.crop == "resized"

    def hold(self) -> None:
        """Read all images, unless they are held already.

        Raises:
            UserError: If they do not fit, or if one of them ends the run.
        """
        self._all()

    def _all(self) -> _Held:
        if self._held is None:
            # In a process that keeps images, the split is the same object in the next run.
            split = id(self._samples.split)
            key = split, self._samples.shape, self._of_any_size, str(self._room.device)
            self._held = kept.recall(key, self._read)
        return self._held

    def _read(self) -> _Held:
        images, labels, missing = self._in_memory() or self._one_by_one()
        starts = heights = widths = torch.empty(0, dtype=torch.int64)
        if self._of_any_size and len(images) and images[0].dtype == torch.uint8:
            sizes = torch.tensor([[image.numel(), *image.shape[1:]] for image in images])
            lengths, heights, widths = sizes.unbind(1)
            starts = lengths.cumsum(0) - lengths
            whole = torch.cat([image.flatten() for image in images])
        else:
            whole = torch.stack(images) if isinstance(images, list) else images
        take = self._room.take
        return _Held(take(whole), take(labels), missing, starts, heights, widths)

    def load(self, jobs: Iterator[Job]) -> Iterator[Loaded]:
        """Make the batches of jobs, in order."""
        self.hold()
        for job in jobs:
            with step_observer.active.aside():
                loaded = self._batch(job)
            yield loaded

    def _batch(self, job: Job) -> Loaded:
        held, settings = self._all(), self._settings
        chosen = torch.tensor(self._readable(job, held), dtype=torch.int64)
        there = chosen.to(held.images.device, non_blocking=True)
        if settings is None or held.images.dtype != torch.uint8 or not len(chosen):
            images = held.images[there]
        else:
            # The 2 makes this generator differ from the other ones of the batch and its images.
            chance = generator(self._samples.seed, job.epoch, job.number, self._rank, 2)
            if self._of_any_size:
                images = self._cropped(held, chosen, settings, chance)
            else:
                images = device_augment.shifted(held.images, chosen, settings, chance)
        return Loaded(images, held.labels[there], (), None)

    def _cropped(
        self, held: _Held, chosen: torch.Tensor, settings: Augmentation, chance: torch.Generator
    ) -> torch.Tensor:
        heights, widths = held.heights[chosen], held.widths[chosen]
        boxes = device_augment.boxes(heights, widths, settings.crop_scale, chance)
        return device_augment.resampled(
            held.images,
            held.starts[chosen],
            widths,
            heights * widths,
            boxes,
            device_augment.flips(settings, len(chosen), chance),
            channels=self._samples.shape[0],
            side=self._samples.shape[1],
            interpolation=settings.interpolation,
        )

    def _readable(self, job: Job, held: _Held) -> list[int]:
        """Return the images of a job that can be read, and spare ones as `Samples` does."""
        if not held.missing:
            return list(job.indices)
        indices = [index for index in job.indices if index not in held.missing]
        spares = (spare for spare in self._samples.spares(job) if spare not in held.missing)
        wanted = min(len(job.indices), LEAST) - len(indices)
        return [*indices, *islice(spares, max(wanted, 0))]

    def _in_memory(self) -> _Read | None:
        """Return the images of a split that is in memory; None for other splits."""
        split = self._samples.split
        held = split.arrays() if isinstance(split, InMemory) else None
        if held is None:
            return None
        images, transform = held.images, self._samples.transform
        if self._of_any_size and images.dtype == torch.uint8:
            return list(images), held.labels, frozenset()
        if transform is not None and images.dtype == torch.uint8:
            images = torch.cat([transform(part) for part in images.split(_AT_ONCE)])
        elif images.shape[1:] != self._samples.shape:
            return None
        return images, held.labels, frozenset()

    def _one_by_one(self) -> _Read:
        """Read the images of files, each alone, so that one that cannot be read is known."""
        split = self._samples.split
        jobs = (Job(0, number, (number,)) for number in range(len(split)))
        samples = replace(self._samples, refill=False)
        loader = Loader(samples, workers=self._workers, pinned=False)
        images: list[torch.Tensor | None] = []
        labels, taken = [], 0
        for loaded in loader.load(jobs):
            if loaded.mistake is not None:
                raise loaded.mistake
            self._report(loaded.faults)
            is_read = len(loaded.labels) > 0
            # A copy, because a worker's tensors hold one file descriptor each.
            images.append(loaded.images[0].clone() if is_read else None)
            labels.append(int(loaded.labels[0]) if is_read else 0)
            taken += loaded.images.nbytes
            if len(images) % _ESTIMATED_AFTER == 0:
                self._room.refuse(taken * len(split) // len(images))
        missing = frozenset(number for number, image in enumerate(images) if image is None)
        some = next((image for image in images if image is not None), torch.empty(0, 1, 1))
        empty = torch.zeros_like(some)
        held = [empty if image is None else image for image in images]
        return held, torch.tensor(labels, dtype=torch.int64), missing
