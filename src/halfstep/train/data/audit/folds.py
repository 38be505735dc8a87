"""Splits an annotated CSV file into k folds, each with a training file and a validation file.

Every class has the same share in each fold (scikit-learn's `StratifiedKFold`). Identical images
stay together, because validation on an image that is also in training gives too high an accuracy.
Identical images count once, so that copies do not change the share of a class.

`StratifiedGroupKFold` would count all copies, and balances classes by a greedy search. With five
folds, its share of a class in a fold differs from a fifth by up to 0.16. Here the difference is at
most 0.04, the smallest that whole images allow (`benchmarks/kept.py`).
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from halfstep import caller
from halfstep.errors import UserError
from halfstep.files import write_atomically
from halfstep.train.data.sources import csv_list, csv_rows, duplicates

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from halfstep.train.config.data import ColumnsConfig
    from halfstep.train.data.sources.csv_rows import CsvRow


@dataclass(frozen=True, slots=True)
class Fold:
    """A split of the rows of a file into training and validation.

    Attributes:
        train: Rows for training, in the order of the file.
        valid: Rows for validation, in the order of the file.
    """

    train: tuple[CsvRow, ...]
    valid: tuple[CsvRow, ...]


@dataclass(frozen=True, slots=True)
class Folds:
    """All folds of a file.

    Attributes:
        folds: The folds; each row is for validation in exactly one of them.
        identical: Number of images that are listed more than once, under the same or other names.
        conflicting: Number of these images that are listed with different labels.
    """

    folds: tuple[Fold, ...]
    identical: int
    conflicting: int


def split(
    file: Path, root: Path, *, k: int, seed: int, columns: ColumnsConfig = csv_rows.STANDARD
) -> Folds:
    """Split the rows of a CSV file.

    Args:
        file: A CSV file with the columns image and label, and without a column split.
        root: Folder that the paths in the file start from.
        k: Number of folds.
        seed: Determines which images share a fold.
        columns: The names of the columns in the file.

    Raises:
        UserError: If the file is not such a CSV file, if images are missing, or if a class has too
            few distinct images to be in both parts of every fold.
    """
    rows = csv_rows.read(file, columns)
    if any(row.split for row in rows):
        raise UserError(f"{file} has a column split, which folds would contradict; remove it")
    missing = csv_list.missing(str(file), rows, root, caller.setting(root="FOLDER"))
    if missing is not None:
        raise missing
    groups = duplicates.groups([root / row.image for row in rows])
    if len(groups) < k:
        raise UserError(
            f"{file} has {len(groups)} distinct images; allowed: {caller.setting(k=2)} to that many"
        )
    labels = [rows[group[0]].label for group in groups]
    from sklearn.model_selection import StratifiedKFold

    splitter = StratifiedKFold(k, shuffle=True, random_state=seed)
    parts = []
    with warnings.catch_warnings():  # classes with fewer images than folds are allowed
        warnings.filterwarnings("ignore", "The least populated class")
        _refuse_rare(file, labels, k)
        for _, chosen in splitter.split(np.zeros(len(groups)), labels):
            parts.append({index for number in chosen for index in groups[number]})
    folds = tuple(fold(rows, valid) for valid in parts)
    _refuse_unlearnable(file, folds)
    several = [{rows[index].label for index in group} for group in groups if len(group) > 1]
    return Folds(folds, len(several), sum(len(names) > 1 for names in several))


def write(folds: Sequence[Fold], out: Path, *, overwrite: bool = False) -> list[Path]:
    """Write train_fold0.csv, valid_fold0.csv and so on into a folder, and return their paths.

    Raises:
        UserError: If one of the files already exists and `overwrite` is False. No file is written
            then.
    """
    contents = {
        out / f"{name}_fold{number}.csv": _text(rows)
        for number, fold in enumerate(folds)
        for name, rows in (("train", fold.train), ("valid", fold.valid))
    }
    there = [path for path in contents if path.exists()]
    if there and not overwrite:
        raise UserError(
            f"{there[0]} is there already; write {caller.setting(overwrite=True)} to replace it, "
            f"or {caller.setting(out='FOLDER')}"
        )
    for path, text in contents.items():
        write_atomically(path, text)
    return list(contents)


def fold(rows: Sequence[CsvRow], valid: set[int]) -> Fold:
    """Return the fold that has the rows with an index in `valid` for validation."""
    return Fold(
        tuple(row for index, row in enumerate(rows) if index not in valid),
        tuple(row for index, row in enumerate(rows) if index in valid),
    )


def _text(rows: Sequence[CsvRow]) -> str:
    return csv_rows.csv_text([("image", "label"), *((row.image, row.label) for row in rows)])


def _refuse_rare(file: Path, labels: Sequence[str], k: int) -> None:
    # StratifiedKFold requires at least one class with k images.
    name, most = Counter(labels).most_common(1)[0]
    if most < k:
        raise UserError(
            f"{file}: no class has {k} distinct images (the most has {name!r}: {most}); "
            f"write {caller.setting(k=max(most, 2))} or less"
        )


def _refuse_unlearnable(file: Path, folds: Sequence[Fold]) -> None:
    for number, fold in enumerate(folds):
        known = {row.label for row in fold.train}
        for row in fold.valid:
            if row.label not in known:
                raise UserError(
                    f"{file}, row {row.number}: in fold {number} all images of {row.label!r} are "
                    "for validation; it needs two distinct images at least, or leave it out"
                )
