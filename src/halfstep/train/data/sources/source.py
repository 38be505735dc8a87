"""The interface between data sets and the loader: what a source must implement.

A source is a file here that turns its section of a config into a `Source`. It reads single images;
order, augmentation, workers, corrupt images and resuming are the business of `batches`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

if TYPE_CHECKING:
    from halfstep.train.config.augment import Normalisation
    from halfstep.train.config.data import SplitConfig


@runtime_checkable
class InMemory(Protocol):
    """A split that may have all of its images in memory."""

    def arrays(self) -> Arrays | None:
        """Return the images and labels that `read` gives one by one; None if they are not there."""


class Split(Protocol):
    """Images and labels by index, in an order that never changes."""

    def __len__(self) -> int:
        """Return the number of images."""

    def read(self, index: int) -> tuple[torch.Tensor, int]:
        """Return an image and its label.

        Returns:
            The image as (channels, height, width), of any size and in uint8, or of the final size
            in fp32; and the index of its class.

        Raises:
            halfstep.feed.decode.CorruptImage: If the image cannot be read.
        """

    def where(self, index: int) -> str:
        """Return what messages call an image: its file, and its row where there is one."""


@dataclass(frozen=True, slots=True)
class Source:
    """A data set, split.

    Attributes:
        train: Images to learn from.
        val: Images that training never sees.
        classes: Names of the classes; a label is an index into it.
        channels: Of an image; 1 is grey, 3 is RGB.
        normalisation: Mean and standard deviation of each channel, of pixels from 0 to 1, where the
            images are normalised already; None leaves it to the config.
    """

    train: Split
    val: Split
    classes: tuple[str, ...]
    channels: int = 3
    normalisation: Normalisation | None = None


@dataclass(frozen=True, slots=True)
class Subset:
    """Some of the images of a split."""

    split: Split
    indices: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> tuple[torch.Tensor, int]:
        return self.split.read(self.indices[index])

    def where(self, index: int) -> str:
        return self.split.where(self.indices[index])

    def arrays(self) -> Arrays | None:
        whole = self.split.arrays() if isinstance(self.split, InMemory) else None
        if whole is None:
            return None
        kept = torch.tensor(self.indices)
        return Arrays(whole.images[kept], whole.labels[kept], whole.name)


@dataclass(frozen=True, slots=True)
class Arrays:
    """A split whose images are of one size and in memory.

    Attributes:
        images: (N, channels, height, width); uint8, or fp32 that is normalised.
        labels: int64 (N,).
        name: What messages call an image, before its index.
    """

    images: torch.Tensor
    labels: torch.Tensor
    name: str

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], int(self.labels[index])

    def where(self, index: int) -> str:
        return f"{self.name} {index}"

    def arrays(self) -> Arrays:
        return self


def ready_images(split: Split, shape: tuple[int, int, int]) -> Arrays | None:
    """Return the images of a split, if all are in memory as the model wants them: fp32 of a shape.

    Rows of them make a batch then, in one operation and not in several for each image.
    """
    held = split.arrays() if isinstance(split, InMemory) else None
    if held is None:
        return None
    images, devices = held.images, {held.images.device.type, held.labels.device.type}
    are_ready = images.dtype == torch.float32 and images.shape[1:] == shape and devices == {"cpu"}
    # A stack of images that are not contiguous has their order of memory, and rows have not.
    return held if are_ready and images.is_contiguous() else None


def limited(split: Split, config: SplitConfig) -> Split:
    """Return as many of the images as the config allows, spread over the split as `spread` has it.

    Files and folders come sorted by class, other sets with the classes taking turns.
    """
    kept = spread(len(split), config.limit)
    return split if len(kept) == len(split) else Subset(split, kept)


def spread(count: int, limit: int | None) -> tuple[int, ...]:
    """Return at most `limit` of the numbers 0 to `count` - 1, always the same ones, in order.

    One of each of `limit` equal stretches, but not at even distances, which could be in step with
    an order of the images: multiples of the golden ratio are in step with nothing.
    """
    kept = count if limit is None else min(limit, count)
    bounds = [number * count // kept for number in range(kept + 1)] if kept else []
    return tuple(
        start + (end - start) * (number * _GOLDEN % _FULL_TURN) // _FULL_TURN
        for number, (start, end) in enumerate(pairwise(bounds))
    )


_FULL_TURN = 2**64
_GOLDEN = round(_FULL_TURN * (math.sqrt(5) - 1) / 2)
