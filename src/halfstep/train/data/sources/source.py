"""The interface between data sets and the loader, which every source implements.

A source is a file in this folder that turns its config section into a `Source`. It only reads
single images; `pipeline` handles order, augmentation, workers, corrupt images and resuming.

The sources of files find their images without torch, and import it when they read one, so that
`halfstep init` and `halfstep data folds` start fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from halfstep.train.config.augment import Normalisation
    from halfstep.train.config.data import SplitConfig
    from halfstep.train.data.sources.faults import Notice


@runtime_checkable
class InMemory(Protocol):
    """A split that may have all of its images in memory."""

    def arrays(self) -> Arrays | None:
        """Return all images and labels of the split; None if they are not in memory."""


class Split(Protocol):
    """Images and labels by index, in a fixed order."""

    def __len__(self) -> int:
        """Return the number of images."""

    def read(self, index: int) -> tuple[torch.Tensor, int]:
        """Return an image and its label.

        Returns:
            The image (channels, height, width), either uint8 of any size, or normalised fp32 of the
            final size; and the index of its class.

        Raises:
            halfstep.feed.decode.CorruptImage: If the image cannot be read.
        """

    def where(self, index: int) -> str:
        """Return the name of an image in messages: its file, and its row in a CSV file."""


@dataclass(frozen=True, slots=True)
class Source:
    """A data set with its two splits.

    Attributes:
        train: Images for training.
        val: Images for validation, which are not used in training.
        classes: Names of the classes; a label is an index into this tuple.
        channels: Number of channels of an image; 1 is grey, 3 is RGB.
        normalisation: Mean and standard deviation of each channel, for pixel values from 0 to 1,
            with which the images are already normalised. None if the config determines them.
        notices: Remarks about the data set, which become warnings.
    """

    train: Split
    val: Split
    classes: tuple[str, ...]
    channels: int = 3
    normalisation: Normalisation | None = None
    notices: tuple[Notice, ...] = ()


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
        import torch

        kept = torch.tensor(self.indices)
        return Arrays(whole.images[kept], whole.labels[kept], whole.name)


@dataclass(frozen=True, slots=True)
class Arrays:
    """A split whose images are of one size and in memory.

    Attributes:
        images: (N, channels, height, width); uint8 or normalised fp32.
        labels: Class indices, int64 (N,).
        name: Name of an image in messages, without its index.
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
    """Return the images of a split if all are in memory as fp32 images of the given shape.

    A batch is then selected from them in one operation, instead of several for each image.
    """
    import torch

    held = split.arrays() if isinstance(split, InMemory) else None
    if held is None:
        return None
    images, devices = held.images, {held.images.device.type, held.labels.device.type}
    are_ready = images.dtype == torch.float32 and images.shape[1:] == shape and devices == {"cpu"}
    # Images that are not contiguous are stacked one by one, which may keep their memory format.
    return held if are_ready and images.is_contiguous() else None


def limited(split: Split, config: SplitConfig) -> Split:
    """Return the split with at most `config.limit` images, which `spread` selects.

    They are spread because files and folders are often sorted by class, and the classes of other
    data sets alternate.
    """
    kept = spread(len(split), config.limit)
    return split if len(kept) == len(split) else Subset(split, kept)


def spread(count: int, limit: int | None) -> tuple[int, ...]:
    """Return at most `limit` of the numbers from 0 to `count` - 1, in order and deterministically.

    The range is divided into `limit` equal intervals, and one number is taken from each. Its
    position within the interval follows multiples of the golden ratio, because a constant distance
    could coincide with a period in the order of the images.
    """
    kept = count if limit is None else min(limit, count)
    bounds = [number * count // kept for number in range(kept + 1)] if kept else []
    return tuple(
        start + (end - start) * (number * _GOLDEN % _FULL_TURN) // _FULL_TURN
        for number, (start, end) in enumerate(pairwise(bounds))
    )


_FULL_TURN = 2**64
_GOLDEN = round(_FULL_TURN * (math.sqrt(5) - 1) / 2)
