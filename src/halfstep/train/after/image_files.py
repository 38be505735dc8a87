"""Finds image files for a trained model, reads them in workers, and resizes them for the run.

An image that cannot be read does not stop the others; a line that names it is returned instead.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torchvision.transforms.v2 import functional

from halfstep.errors import UserError
from halfstep.feed.decode import read_image
from halfstep.feed.pixels import CorruptImage
from halfstep.train.config.augment import AugmentConfig
from halfstep.train.data import usable_workers
from halfstep.train.data.pipeline import transforms
from halfstep.train.data.pipeline.loader import Loader
from halfstep.train.data.pipeline.order import Order
from halfstep.train.data.pipeline.samples import Samples
from halfstep.train.data.sources import csv_rows, image_tree, row_files
from halfstep.train.data.sources.faults import DataWarning, warn_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from halfstep.train.after.trained import Trained
    from halfstep.train.config.data import ColumnsConfig

SUFFIXES = (*image_tree.SUFFIXES, ".gif")


@dataclass(frozen=True, slots=True)
class Listed:
    """A requested image.

    Attributes:
        name: Name as requested: a path, or the value of a CSV file's column image.
        file: Path of the image file.
        label: Class of the image in a CSV file, or "".
        where: Name of the image in messages.
    """

    name: str
    file: Path
    label: str = ""
    where: str = ""


class DecodedBatch(NamedTuple):
    """A batch of images that were read, and messages about images that could not be read.

    Attributes:
        listed: The images that were read, in order.
        images: Pixels of these images, uint8 (N, channels, height, width).
        faults: A line for each image that could not be read.
    """

    listed: list[Listed]
    images: torch.Tensor
    faults: tuple[str, ...]


def find(
    inputs: Sequence[Path],
    root: Path | None = None,
    columns: ColumnsConfig = csv_rows.STANDARD,
) -> list[Listed]:
    """Return the images in `inputs`: image files, folders with subfolders, and CSV files.

    Warns:
        DataWarning: About files in a folder that are not read.

    Raises:
        UserError: If a path does not exist, or if no image is found.
    """
    images: list[Listed] = []
    for path in inputs:
        if path.is_dir():
            left_out = image_tree.LeftOut()
            files = image_tree.below(path, left_out, SUFFIXES, follow_links=False)
            images += [
                Listed(str(file), file, where=str(file)) for file in sorted(map(Path, files))
            ]
            warn_of(notice.text for notice in left_out.notices(path))
        elif not path.exists():
            raise UserError(f"{str(path)!r} does not exist; write images, folders, or a CSV file")
        elif path.suffix.lower() == ".csv":
            images += of_csv(path, root, columns)
        else:
            images.append(Listed(str(path), path, where=str(path)))
    if not images:
        given, allowed = ", ".join(map(str, inputs)), " ".join(sorted(SUFFIXES))
        raise UserError(f"no image found in {given}; allowed: files ending in {allowed}")
    return images


def of_csv(
    file: Path,
    root: Path | None,
    columns: ColumnsConfig = csv_rows.STANDARD,
    *,
    labelled: bool = False,
) -> list[Listed]:
    """Return the images in a CSV file; paths are relative to `root`, or the file's folder.

    Warns:
        DataWarning: About images whose names have another case or Unicode form on disk.
    """
    base = root or file.parent
    rows = csv_rows.read(file, columns, labelled=labelled)
    located = row_files.locate(str(file), rows, base)
    warn_of(notice.text for notice in located.notices())
    return [
        Listed(row.image, base / on_disk.image, row.label, f"{file}, row {row.number}: {row.image}")
        for row, on_disk in zip(rows, located.rows, strict=True)
    ]


def _warn_of_unknown_preprocessing(trained: Trained, augment: AugmentConfig) -> None:
    """Warn if the data set of the run may have normalised its fp32 images in an unknown way."""
    mean, std = trained.normalisation
    taken_as_they_were = not any(mean) and all(value == 1.0 for value in std)
    if trained.config.data.name == "import" and taken_as_they_were and augment.mean is None:
        warnings.warn(
            f"{trained.config.data.train.target} returned float32 pixels with unknown "
            "normalization: images are passed to the model with values from 0 to 1; train with "
            "data.augment.mean and std to record the normalization",
            DataWarning,
            stacklevel=3,
        )


def batches(trained: Trained, listed: Sequence[Listed]) -> Iterator[DecodedBatch]:
    """Read images in order, with the batch size and at most the number of workers of the run."""
    data = trained.config.data
    channels, side, _ = trained.image_shape
    augment = getattr(data, "augment", AugmentConfig())
    _warn_of_unknown_preprocessing(trained, augment)
    transform = transforms.build(augment, side, train=False)
    samples = Samples(
        _Asked(listed, channels), trained.image_shape, transform, seed=0, refill=False
    )
    size = trained.config.batch_size
    workers = min(usable_workers(data.workers), len(listed) // size)
    jobs = Order(len(listed), size, seed=None).jobs(0)
    for read in Loader(samples, workers=workers, pinned=False).load(jobs):
        if read.mistake is not None:
            raise read.mistake
        good = [listed[number] for number in read.labels.tolist()]
        yield DecodedBatch(good, read.images, read.faults)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The requested images as a split, in which the label of an image is its index in the list.

    Attributes:
        listed: The requested images.
        channels: Number of input channels of the model; 1 converts the images to grey.
    """

    listed: Sequence[Listed]
    channels: int

    def __len__(self) -> int:
        return len(self.listed)

    def read(self, index: int) -> tuple[torch.Tensor, int]:
        where = self.where(index)
        try:
            image = read_image(self.listed[index].file, where)
        except OSError as error:
            raise CorruptImage(f"{where} cannot be read: {error.strerror or error}") from error
        return (functional.rgb_to_grayscale(image) if self.channels == 1 else image), index

    def where(self, index: int) -> str:
        return self.listed[index].where
