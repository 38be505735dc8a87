"""Lists the images of a data set for `check`, without a run.

Unlike a `Source`, a listing accepts faulty images: a row whose image is missing is an entry like
any other, and fails only when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from halfstep.feed.decode import read_image
from halfstep.train.config.data import CsvConfig
from halfstep.train.data import open_source
from halfstep.train.data.pipeline.samples import refuse_shape
from halfstep.train.data.sources import csv_list, csv_rows, row_files
from halfstep.train.data.sources.pictures import folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch

    from halfstep.train.config.data import ColumnsConfig, DataConfig
    from halfstep.train.data.pipeline.samples import Shape
    from halfstep.train.data.sources.csv_rows import CsvRow
    from halfstep.train.data.sources.source import Split

Labelled = tuple["torch.Tensor", str]


@dataclass(frozen=True, slots=True)
class Entry:
    """One image of a data set.

    Attributes:
        image: Path of the image as listed, or another name that identifies the image.
        split: "train", "val", or "" if the split is not known.
        read: Returns the image and the name of its class.
        label: Name of the image's class, or "" if it is known only after reading.
        file: The CSV file that lists the image; None without one.
        row: Row of the image in the CSV file; the header is row 1.
    """

    image: str
    split: str
    read: Callable[[], Labelled] = field(compare=False)
    label: str = ""
    file: str | None = None
    row: int | None = None


def of_csv(
    file: Path, root: Path, split: str = "", columns: ColumnsConfig = csv_rows.STANDARD
) -> list[Entry]:
    """Return the images that a CSV file lists; `split` applies to rows without a split."""
    spellings = row_files.Spellings(root)
    return [
        Entry(
            image=row.image,
            split=row.split or split,
            read=partial(_read_row, row, root, spellings),
            label=row.label,
            file=str(file),
            row=row.number,
        )
        for row in csv_rows.read(file, columns)
    ]


def of_config(config: DataConfig) -> list[Entry]:
    """Return the images of both splits of the data set that `config` names."""
    if isinstance(config, CsvConfig):
        root = folder(config.root)
        files = csv_list.files(config, root)
        return [
            entry
            for split, file in files.items()
            for entry in of_csv(file, root, split, config.columns)
            # If each split has a file, the run ignores the rows of other splits.
            if len(files) == 1 or entry.split == split
        ]
    source = open_source(config)
    shape = (source.channels, config.resolution, config.resolution)
    return [
        Entry(split.where(index), name, partial(_read, split, index, source.classes, shape))
        for name, split in (("train", source.train), ("val", source.val))
        for index in range(len(split))
    ]


def _read_row(row: CsvRow, root: Path, spellings: row_files.Spellings) -> Labelled:
    try:
        return read_image(root / row.image), row.label
    except FileNotFoundError:
        path = spellings.on_disk(row.image)
        if path is None:
            raise
        return read_image(root / path), row.label


def _read(split: Split, index: int, classes: Sequence[str], shape: Shape) -> Labelled:
    image, label = split.read(index)
    refuse_shape(image, shape, split, index)
    return image, classes[label]
