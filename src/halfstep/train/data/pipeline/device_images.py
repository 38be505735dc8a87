"""All images of a split in the memory of the device, as uint8: no worker, no copy of a batch.

Images that are not cropped at random are held as the model sees them, pixel for pixel what the
loader makes of them. Images for random resized crops are held as they are, of any size, one after
the other. A batch depends only on its job, so it is the same on every device and after a resume.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import torch

from halfstep import step_observer
from halfstep.errors import UserError
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
        """Refuse images that do not fit.

        Raises:
            UserError: If `wanted` bytes are above the limit, or above the free memory of a GPU.
        """
        whole = (self.taken + wanted) / 1e9
        figure = f"data.cache_images is device, and the images take {whole:.3g} GB"
        if whole > self.gigabytes:
            raise UserError(
                f"{figure}, but data.cache_images_gigabytes is {self.gigabytes:g}; write "
                f"data.cache_images_gigabytes: {whole * 1.05:.2g}, a lower data.resolution, or "
                "data.cache_images: none"
            )
        if self.device.type == "cuda" and wanted > (
            free := torch.cuda.mem_get_info(self.device)[0]
        ):
            raise UserError(
                f"{figure}, but {self.device} has {free / 1e9:.3g} GB free; write a lower "
                "data.resolution, or data.cache_images: none"
            )

    def take(self, images: torch.Tensor) -> torch.Tensor:
        """Return images on the device."""
        self.refuse(images.nbytes)
        self.taken += images.nbytes
        return images.to(self.device)


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
        self._images: torch.Tensor | None = None
        self._labels = torch.empty(0, dtype=torch.int64)
        self._missing: set[int] = set()
        # Of images of any size: where each starts, and its height and width.
        self._starts = self._heights = self._widths = torch.empty(0, dtype=torch.int64)
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
        if self._images is not None:
            return
        images, labels = self._in_memory() or self._one_by_one()
        if self._of_any_size and images and images[0].dtype == torch.uint8:
            sizes = torch.tensor([[each.numel(), *each.shape[1:]] for each in images])
            sizes, self._heights, self._widths = sizes.unbind(1)
            self._starts = sizes.cumsum(0) - sizes
            whole = torch.cat([each.flatten() for each in images])
        else:
            whole = torch.stack(images) if isinstance(images, list) else images
        self._images = self._room.take(whole)
        self._labels = self._room.take(labels)

    def load(self, jobs: Iterator[Job]) -> Iterator[Loaded]:
        """Make the batches of jobs, in order."""
        self.hold()
        for job in jobs:
            with step_observer.active.aside():
                loaded = self._batch(job)
            yield loaded

    def _batch(self, job: Job) -> Loaded:
        assert self._images is not None
        chosen = torch.tensor(self._readable(job), dtype=torch.int64)
        chance = None
        if self._settings is not None and self._images.dtype == torch.uint8:
            # The 2 makes this generator differ from the other ones of the batch and its images.
            chance = generator(self._samples.seed, job.epoch, job.number, self._rank, 2)
        if chance is None or self._settings is None or not len(chosen):
            images = self._images[chosen.to(self._images.device, non_blocking=True)]
        elif self._of_any_size:
            images = self._cropped(chosen, self._settings, chance)
        else:
            images = device_augment.shifted(self._images, chosen, self._settings, chance)
        labels = self._labels[chosen.to(self._labels.device, non_blocking=True)]
        return Loaded(images, labels, (), None)

    def _cropped(
        self, chosen: torch.Tensor, settings: Augmentation, chance: torch.Generator
    ) -> torch.Tensor:
        assert self._images is not None
        heights, widths = self._heights[chosen], self._widths[chosen]
        found = device_augment.boxes(heights, widths, settings.crop_scale, chance)
        return device_augment.resampled(
            self._images,
            self._starts[chosen],
            widths,
            heights * widths,
            found,
            device_augment.flips(settings, len(chosen), chance),
            channels=self._samples.shape[0],
            side=self._samples.shape[1],
            interpolation=settings.interpolation,
        )

    def _readable(self, job: Job) -> list[int]:
        """Return the images of a job that can be read, and spare ones as `Samples` does."""
        if not self._missing:
            return list(job.indices)
        indices = [each for each in job.indices if each not in self._missing]
        spares = (each for each in self._samples.spares(job) if each not in self._missing)
        wanted = min(len(job.indices), LEAST) - len(indices)
        return [*indices, *islice(spares, max(wanted, 0))]

    def _in_memory(self) -> tuple[list[torch.Tensor] | torch.Tensor, torch.Tensor] | None:
        """Return the images and labels of a split that is in memory; None for other splits."""
        split = self._samples.split
        held = split.arrays() if isinstance(split, InMemory) else None
        if held is None:
            return None
        images, transform = held.images, self._samples.transform
        if self._of_any_size and images.dtype == torch.uint8:
            return list(images), held.labels
        if transform is not None and images.dtype == torch.uint8:
            images = torch.cat([transform(part) for part in images.split(_AT_ONCE)])
        elif images.shape[1:] != self._samples.shape:
            return None
        return images, held.labels

    def _one_by_one(self) -> tuple[list[torch.Tensor], torch.Tensor]:
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
        self._missing = {number for number, image in enumerate(images) if image is None}
        some = next((image for image in images if image is not None), torch.empty(0, 1, 1))
        empty = torch.zeros_like(some)
        held = [empty if image is None else image for image in images]
        return held, torch.tensor(labels, dtype=torch.int64)
