"""Image files for a trained model: found, read by workers, brought to the run's resolution.

An image that cannot be read does not stop the others; it comes back as a line that names it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import functional

from halfstep.errors import UserError
from halfstep.train.config.augment import AugmentConfig
from halfstep.train.data import usable_workers
from halfstep.train.data.pipeline import transforms
from halfstep.train.data.sources import csv_rows
from halfstep.train.data.sources.decode import CorruptImage, read_image
from halfstep.train.data.sources.faults import DataWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from halfstep.train.after.trained import Trained
    from halfstep.train.config.data import ColumnsConfig

SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)


@dataclass(frozen=True, slots=True)
class Listed:
    """An image that someone asked for.

    Attributes:
        name: As it was written: a path, or what a CSV file has in its column image.
        file: Where it lies.
        label: The class that a CSV file gives it, or "".
        where: What messages call it.
    """

    name: str
    file: Path
    label: str = ""
    where: str = ""


class DecodedBatch(NamedTuple):
    """Images that were read, uint8 (N, channels, height, width), and lines on those that were not.

    Attributes:
        listed: The images, in order.
        images: Their pixels.
        faults: A line for each that could not be read.
    """

    listed: list[Listed]
    images: torch.Tensor
    faults: list[str]


def find(
    inputs: Sequence[Path],
    root: Path | None = None,
    columns: ColumnsConfig = csv_rows.STANDARD,
) -> list[Listed]:
    """Return the images that paths name.

    Args:
        inputs: Images, folders (with all images in them and their folders, by name), or CSV files
            with a column image.
        root: What paths in CSV files start from; by default each file's own folder.
        columns: What CSV files call their columns.

    Raises:
        UserError: If a path does not exist, or nothing is found.
    """
    found: list[Listed] = []
    for path in inputs:
        if path.is_dir():
            found += [
                Listed(str(file), file, where=str(file))
                for file in sorted(path.rglob("*"))
                if file.suffix.lower() in SUFFIXES and file.is_file()
            ]
        elif not path.exists():
            raise UserError(f"{str(path)!r} does not exist; write images, folders, or a CSV file")
        elif path.suffix.lower() == ".csv":
            found += of_csv(path, root, columns)
        else:
            found.append(Listed(str(path), path, where=str(path)))
    if not found:
        given = ", ".join(map(str, inputs))
        raise UserError(f"no image is in {given}; allowed: files ending in {_allowed()}")
    return found


def of_csv(
    file: Path,
    root: Path | None,
    columns: ColumnsConfig = csv_rows.STANDARD,
    *,
    labelled: bool = False,
) -> list[Listed]:
    """Return the images that a CSV file lists.

    Args:
        file: With a column image, and perhaps label.
        root: What its paths start from; its own folder by default.
        columns: What it calls its columns.
        labelled: Whether it must have labels.

    Raises:
        UserError: If it is no such file; the message has the row.
    """
    base = root or file.parent
    return [
        Listed(row.image, base / row.image, row.label, f"{file}, row {row.number}: {row.image}")
        for row in csv_rows.read(file, columns, labelled=labelled)
    ]


def _warn_of_unknown_preprocessing(trained: Trained, augment: AugmentConfig) -> None:
    """A data set of the user's own that gives fp32 pixels may have normalised them by itself."""
    mean, std = trained.normalisation
    taken_as_they_were = not any(mean) and all(value == 1.0 for value in std)
    if trained.config.data.name == "import" and taken_as_they_were and augment.mean is None:
        warnings.warn(
            f"{trained.config.data.train.target} gave float32 pixels, and what it did to them is "
            "not known: images are given to the model with values from 0 to 1; train with "
            "data.augment.mean and std to say what it does",
            DataWarning,
            stacklevel=3,
        )


def batches(trained: Trained, listed: Sequence[Listed]) -> Iterator[DecodedBatch]:
    """Read images in order, as many at a time and by as many workers as the run had.

    Args:
        trained: Whose resolution, crop and channels the images get.
        listed: Which images.
    """
    data = trained.config.data
    channels, side, _ = trained.image_shape
    augment = getattr(data, "augment", AugmentConfig())
    _warn_of_unknown_preprocessing(trained, augment)
    pixels = Pixels(listed, transforms.build(augment, side, train=False), channels)
    loader: DataLoader[torch.Tensor | str] = DataLoader(
        pixels,
        trained.config.batch_size,
        num_workers=min(usable_workers(data.workers), len(listed) // trained.config.batch_size),
        collate_fn=list,
        # Without one of its own it would draw from the process's generator.
        generator=torch.Generator().manual_seed(0),
    )
    start = 0
    for read in loader:
        part = listed[start : start + len(read)]
        start += len(read)
        good = [each for each, image in zip(part, read, strict=True) if not isinstance(image, str)]
        images = [image for image in read if not isinstance(image, str)]
        faults = [fault for fault in read if isinstance(fault, str)]
        empty = torch.empty(0, *trained.image_shape, dtype=torch.uint8)
        yield DecodedBatch(good, torch.stack(images) if images else empty, faults)


@dataclass(frozen=True, slots=True)
class Pixels(Dataset[torch.Tensor | str]):
    """The pixels of listed images, or a line that says why there are none.

    Attributes:
        listed: Which images.
        transform: From uint8 of any size to the run's resolution.
        channels: Of the model; 1 makes them grey.
    """

    listed: Sequence[Listed]
    transform: Callable[[torch.Tensor], torch.Tensor]
    channels: int

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.listed)

    def __getitem__(self, index: int) -> torch.Tensor | str:
        """Return the pixels of one image, or what is wrong with it."""
        wanted = self.listed[index]
        try:
            image = read_image(wanted.file, wanted.where)
        except CorruptImage as error:
            return str(error)
        except OSError as error:
            return f"{wanted.where} cannot be read: {error.strerror or error}"
        if self.channels == 1:
            image = functional.rgb_to_grayscale(image)
        return self.transform(image)


def _allowed() -> str:
    return " ".join(sorted(SUFFIXES))
