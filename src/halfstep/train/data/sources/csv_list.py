"""Loads images that CSV files list, and finds faults of these lists; messages name the rows.

A fault that prevents training is an error: a missing file, or a label in validation that training
does not have. A fault that only makes its results wrong is a warning: one image with two labels, or
one image in both splits.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from halfstep import caller
from halfstep.errors import UserError
from halfstep.train.data.sources import csv_rows, duplicates, row_files, spelling
from halfstep.train.data.sources.faults import SHOWN, DataWarning, Unusable, listing
from halfstep.train.data.sources.pictures import Pictures, Texts, folder, locate
from halfstep.train.data.sources.source import Source, limited

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from halfstep.train.config.data import CsvConfig
    from halfstep.train.data.sources.csv_rows import CsvRow
    from halfstep.train.data.sources.row_files import LocatedRows


def load(config: CsvConfig) -> Source:
    """Return the images that a config's CSV files list.

    Warns:
        DataWarning: About images that have two labels, are listed twice, or are in both splits.

    Raises:
        Unusable: If rows are invalid, if images do not exist, if training has only one label, or if
            validation has a label that training does not have.
        UserError: If a file is missing, is not such a CSV file, or lists no image of a split.
    """
    root = folder(config.root)
    located = [row_files.locate(file, rows, root) for file, rows in _listed(config, root)]
    notices = [notice for split in located for notice in split.notices()]
    refused = refusals(located, root)
    if refused:
        raise Unusable(refused, notices)
    _warn_of(duplicates.find([(split.file, split.rows) for split in located], root, _pixels))
    names = classes(located[0].rows)
    numbers = {name: number for number, name in enumerate(names)}
    train, val = (_pictures(split, root, numbers) for split in located)
    return Source(
        limited(train, config.train), limited(val, config.val), names, notices=tuple(notices)
    )


def _pixels(file: Path) -> np.ndarray:
    """Read an image by the decoder of the run, which is faster than Pillow but needs torch."""
    from halfstep.feed.decode import read_image

    return read_image(file).permute(1, 2, 0).contiguous().numpy()


def files(config: CsvConfig, root: Path) -> dict[str, Path]:
    """Return the CSV file of each split for which the config names one.

    Raises:
        UserError: If a file is missing, or if the config names no file.
    """
    given = {"train": config.train.ann_file, "val": config.val.ann_file}
    by_split = {
        key: locate(name, root, f"data.{key}.ann_file")
        for key, name in given.items()
        if name is not None
    }
    if not by_split:
        raise UserError(
            "data.train.ann_file and data.val.ann_file are both null; "
            f"write {caller.fields({'data.train.ann_file': 'train.csv'})}"
        )
    return by_split


def refusals(located: Sequence[LocatedRows], root: Path) -> list[UserError]:
    """Return all reasons why the splits cannot be used; the first split is for training."""
    errors: list[UserError | None] = [
        missing(split, root, caller.fields({"data.root": "FOLDER"})) for split in located
    ]
    train, *others = located
    names = classes(train.rows)
    if len(names) == 1:
        message = f"{train.file}: every row has the label {names[0]!r}; allowed: two or more"
        errors.append(UserError(message))
    errors += [_unknown_labels(val, train.file, names) for val in others]
    return [error for error in errors if error is not None]


def splits(file: Path, rows: Sequence[CsvRow]) -> list[tuple[str, list[CsvRow]]]:
    """Return the rows of each split if the file has a column split, else all rows as one list."""
    keys = csv_rows.SPLITS if rows and rows[0].split else ("",)
    return [(str(file), of_split(file, rows, key)) for key in keys]


def _listed(config: CsvConfig, root: Path) -> list[tuple[str, list[CsvRow]]]:
    """Return the file and rows of each split; a split without a file uses the other's."""
    given = files(config, root)
    only = next(iter(given.values()))
    file_of = {key: given.get(key, only) for key in csv_rows.SPLITS}
    rows = {file: csv_rows.read(file, config.columns) for file in dict.fromkeys(file_of.values())}
    listed = []
    for key, file in file_of.items():
        has_column = bool(rows[file]) and bool(rows[file][0].split)
        name = config.columns.split
        if rows[file] and not has_column and name != csv_rows.STANDARD.split:
            raise UserError(f"data.columns.split is {name!r}, a column that {file} does not have")
        if rows[file] and not has_column and len(given) == 1:
            raise UserError(
                f"{file} has no column {name} and is the only list; write data.train.ann_file=... "
                "and data.val.ann_file=..., which halfstep data folds makes of one list"
            )
        listed.append((str(file), of_split(file, rows[file], key if has_column else "")))
    return listed


def of_split(file: Path, rows: Sequence[CsvRow], key: str) -> list[CsvRow]:
    """Return the rows of one split; "" is that of a file without a column split.

    Raises:
        UserError: If there are none.
    """
    if not rows:
        raise UserError(f"{file} lists no image; allowed: at least one row under the header")
    kept = [row for row in rows if row.split == key]
    if not kept:
        raise UserError(f"{file} has no row whose split is {key!r}; write some")
    return kept


class MissingImages(UserError):  # noqa: N818  (it names what was found)
    """Some images of a list do not exist."""


def missing(split: LocatedRows, root: Path, instead: str) -> MissingImages | None:
    """Return an error if images do not exist; `instead` is the option that names their folder."""
    gone = split.missing
    if not gone:
        return None
    return MissingImages(
        f"{split.file}: {len(gone):,} of {len(split.rows)} images do not exist under "
        f"{str(root)!r}: {listing(f'row {row.number} ({row.image})' for row in gone)}; "
        f"write {instead}, or leave the rows out"
    )


def classes(rows: Sequence[CsvRow]) -> tuple[str, ...]:
    """Return the different labels of some rows, sorted as text, or as numbers if all are."""
    names = sorted({row.label for row in rows})
    if all(name.isascii() and name.isdigit() for name in names):
        names.sort(key=int)  # 2 before 10
    return tuple(names)


def _unknown_labels(val: LocatedRows, train: str, names: Sequence[str]) -> UserError | None:
    known = set(names)
    unknown = [row for row in val.rows if row.label not in known]
    if not unknown:
        return None
    first = unknown[0].label
    return UserError(
        f"{val.file}: {len(unknown):,} rows have a label that no row for training in {train} "
        f"has: {listing(f'row {row.number} ({row.label!r})' for row in unknown)}; "
        f"leave them out, or add such images to training{_same_number(first, names)}"
    )


def _same_number(label: str, names: Sequence[str]) -> str:
    """Return a hint at the intended class, such as "0" for "0.0", which a spreadsheet writes."""
    for name in names:
        with suppress(ValueError):
            if float(name) == float(label):
                return f"; {label!r} and {name!r} are the same number: write both alike"
    return spelling.hint(label, names)


def _warn_of(copies: duplicates.Duplicates) -> None:
    kinds = {
        "one image with several labels, which contradict each other": copies.contradicting,
        "one image for training and for validation, which flatters the validation": copies.shared,
        "one image listed more than once, which then counts more than once": copies.repeated,
    }
    for meaning, images in kinds.items():
        for line in images[:SHOWN]:
            warnings.warn(f"{line}: {meaning}", DataWarning, stacklevel=2)
        if len(images) > SHOWN:
            more = f"{len(images) - SHOWN} more of such ({meaning}); halfstep data check lists all"
            warnings.warn(more, DataWarning, stacklevel=2)


def _pictures(split: LocatedRows, root: Path, numbers: dict[str, int]) -> Pictures:
    return Pictures(
        root,
        Texts.pack([row.image for row in split.rows]),
        np.array([numbers[row.label] for row in split.rows], dtype=np.int64),
        split.file,
        np.array([row.number for row in split.rows], dtype=np.int64),
    )
