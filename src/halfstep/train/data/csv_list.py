"""Images that CSV files list, and what can be wrong with such lists, told by row.

What cannot be trained on is an error: a missing file, a label in validation that training has none
of. What can be, but will teach something wrong, is a warning: one image with two labels, one image
in both splits.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from halfstep.errors import UserError, closest
from halfstep.train.data import csv_rows, duplicates
from halfstep.train.data.faults import DataWarning
from halfstep.train.data.pictures import Pictures, Texts, folder, locate
from halfstep.train.data.source import Source, limited

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from halfstep.train.config.data import CsvConfig
    from halfstep.train.data.csv_rows import Row

_SHOWN = 20
"""Rows that a message lists at most, and images of a kind that are warned of one by one."""


def load(config: CsvConfig) -> Source:
    """Return the images that a config's CSV files list.

    Warns:
        DataWarning: Of images that have two labels, are listed twice, or are in both splits.

    Raises:
        UserError: If a file is missing, is no such CSV, lists images that do not exist, or if
            validation has a label that training has not.
    """
    root = folder(config.root)
    files = _files(config, root)
    needs_column = None in (config.train.ann_file, config.val.ann_file)
    rows = {key: _rows_of(key, file, needs_column=needs_column) for key, file in files.items()}
    listed = [(str(file), rows[key]) for key, file in files.items()]
    for file, of_split in listed:
        _refuse_missing(file, of_split, root)
    classes = _classes(listed[0])
    _refuse_unknown_labels(listed[1], listed[0], classes)
    _warn_of(duplicates.find(listed, root))
    numbers = {name: number for number, name in enumerate(classes)}
    train, val = (_pictures(file, of_split, root, numbers) for file, of_split in listed)
    return Source(limited(train, config.train), limited(val, config.val), classes)


def _files(config: CsvConfig, root: Path) -> dict[str, Path]:
    """Return the file of each split; one that is not given is the other's."""
    given = {"train": config.train.ann_file, "val": config.val.ann_file}
    found = {
        key: locate(name, root, f"data.{key}.ann_file")
        for key, name in given.items()
        if name is not None
    }
    if not found:
        raise UserError(
            "data.train.ann_file and data.val.ann_file are both null; "
            "write --options data.train.ann_file=train.csv"
        )
    only = next(iter(found.values()))
    return {key: found.get(key, only) for key in given}


def _rows_of(key: str, file: Path, *, needs_column: bool) -> list[Row]:
    rows = csv_rows.read(file)
    if not rows:
        raise UserError(f"{file} lists no image; allowed: at least one row under the header")
    if not rows[0].split:
        if needs_column:
            raise UserError(
                f"{file} has no column split and is the only list; write data.train.ann_file=... "
                "and data.val.ann_file=..., which halfstep data folds makes of one list"
            )
        return rows
    kept = [row for row in rows if row.split == key]
    if not kept:
        raise UserError(f"{file} has no row whose split is {key!r}; write some")
    return kept


def _refuse_missing(file: str, rows: Sequence[Row], root: Path) -> None:
    missing = [row for row in rows if not (root / row.image).is_file()]
    if not missing:
        return
    raise UserError(
        f"{file}: {_count(missing)} of {len(rows)} images do not exist under {str(root)!r}: "
        f"{_listing(f'row {row.number} ({row.image})' for row in missing)}; "
        "leave the rows out, or write --options data.root=FOLDER"
    )


def _classes(train: tuple[str, list[Row]]) -> tuple[str, ...]:
    file, rows = train
    names = sorted({row.label for row in rows})
    if all(name.isascii() and name.isdigit() for name in names):
        names.sort(key=int)  # 2 before 10
    if len(names) < 2:
        raise UserError(f"{file}: every row has the label {names[0]!r}; allowed: two or more")
    return tuple(names)


def _refuse_unknown_labels(
    val: tuple[str, list[Row]], train: tuple[str, list[Row]], classes: Sequence[str]
) -> None:
    known = set(classes)
    unknown = [row for row in val[1] if row.label not in known]
    if not unknown:
        return
    first = unknown[0].label
    raise UserError(
        f"{val[0]}: {_count(unknown)} rows have a label that no row for training in {train[0]} "
        f"has: {_listing(f'row {row.number} ({row.label!r})' for row in unknown)}; "
        f"leave them out, or add such images to training{closest(first, classes)}"
    )


def _warn_of(found: duplicates.Duplicates) -> None:
    kinds = {
        "one image with several labels, which contradict each other": found.contradicting,
        "one image for training and for validation, which flatters the validation": found.shared,
        "one image listed more than once, which then counts more than once": found.repeated,
    }
    for meaning, images in kinds.items():
        for line in images[:_SHOWN]:
            warnings.warn(f"{line}: {meaning}", DataWarning, stacklevel=2)
        if len(images) > _SHOWN:
            more = f"{len(images) - _SHOWN} more of such ({meaning}); halfstep data check lists all"
            warnings.warn(more, DataWarning, stacklevel=2)


def _pictures(file: str, rows: Sequence[Row], root: Path, numbers: dict[str, int]) -> Pictures:
    return Pictures(
        root,
        Texts.pack([row.image for row in rows]),
        np.array([numbers[row.label] for row in rows], dtype=np.int64),
        file,
        np.array([row.number for row in rows], dtype=np.int64),
    )


def _count(rows: Sequence[Row]) -> str:
    return f"{len(rows):,}"


def _listing(entries: Iterable[str]) -> str:
    entries = list(entries)
    more = f" and {len(entries) - _SHOWN:,} more" if len(entries) > _SHOWN else ""
    return ", ".join(entries[:_SHOWN]) + more
