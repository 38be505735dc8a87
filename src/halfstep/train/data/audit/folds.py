"""Splits an annotated CSV file into k folds, each with a training file and a validation file.

Every class has the same share in each fold, as with scikit-learn's `StratifiedKFold`. Identical
images stay together, because validation on an image that is also in training gives too high an
accuracy. Identical images count once, so that copies do not change the share of a class.

`StratifiedGroupKFold` would count all copies, and balances classes by a greedy search. With five
folds, its share of a class in a fold differs from a fifth by up to 0.16. Here the difference is at
most 0.04, the smallest that whole images allow (`benchmarks/kept.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from halfstep import caller
from halfstep.errors import UserError
from halfstep.files import write_atomically
from halfstep.train.data.sources import class_names, csv_list, csv_rows, duplicates, row_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from halfstep.train.config.data import ColumnsConfig
    from halfstep.train.data.sources.csv_rows import CsvRow
    from halfstep.train.data.sources.faults import Notice


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
        notices: Remarks about the file.
    """

    folds: tuple[Fold, ...]
    identical: int
    conflicting: int
    notices: tuple[Notice, ...] = ()


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
    located = row_files.locate(str(file), rows, root)
    missing = csv_list.missing(located, root, caller.setting(root="FOLDER"))
    if missing is not None:
        raise missing
    rows = located.rows
    notices = (*located.notices(), *class_names.examine(csv_list.classes(rows)))
    groups = duplicates.groups([root / row.image for row in rows])
    if len(groups) < k:
        raise UserError(
            f"{file} has {len(groups)} distinct images; allowed: {caller.setting(k=2)} to that many"
        )
    labels = [rows[group[0]].label for group in groups]
    _refuse_rare(file, labels, k)
    chosen = stratified(labels, k=k, seed=seed)
    folds = tuple(
        fold(rows, {index for at in np.flatnonzero(chosen == number) for index in groups[at]})
        for number in range(k)
    )
    _refuse_unlearnable(file, folds)
    several = [{rows[index].label for index in group} for group in groups if len(group) > 1]
    conflicting = sum(len(names) > 1 for names in several)
    return Folds(folds, len(several), conflicting, notices)


def stratified(labels: Sequence[str], *, k: int, seed: int) -> np.ndarray:
    """Return the number of the fold in which each image is for validation, int64 (N,).

    The numbers are those of scikit-learn's `StratifiedKFold` with `shuffle=True`, which takes a
    second to import.
    """
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    classes = np.array([numbers[label] for label in labels], dtype=np.int64)
    # The images of all folds, sorted by class and dealt out in turn, give the size of each share.
    shares = [np.bincount(np.sort(classes)[fold::k], minlength=len(numbers)) for fold in range(k)]
    random = np.random.RandomState(seed)  # scikit-learn's generator
    chosen = np.empty(len(labels), dtype=np.int64)
    for number in range(len(numbers)):
        of_class = np.repeat(np.arange(k), [share[number] for share in shares])
        random.shuffle(of_class)
        chosen[classes == number] = of_class
    return chosen


def write(folds: Sequence[Fold], out: Path, *, overwrite: bool = False) -> list[Path]:
    """Write train_fold0.csv, valid_fold0.csv and so on into a folder, and return their paths.

    Raises:
        UserError: If one of the files already exists and `overwrite` is False. No file is written
            then.
    """
    contents = {
        out / f"{name}_fold{number}.csv": text(rows)
        for number, fold in enumerate(folds)
        for name, rows in (("train", fold.train), ("valid", fold.valid))
    }
    there = [path for path in contents if path.exists()]
    if there and not overwrite:
        raise UserError(
            f"{there[0]} is there already; write {caller.setting(overwrite=True)} to replace it, "
            f"or {caller.setting(out='FOLDER')}"
        )
    for path, content in contents.items():
        write_atomically(path, content)
    return list(contents)


def fold(rows: Sequence[CsvRow], valid: set[int]) -> Fold:
    """Return the fold that has the rows with an index in `valid` for validation."""
    return Fold(
        tuple(row for index, row in enumerate(rows) if index not in valid),
        tuple(row for index, row in enumerate(rows) if index in valid),
    )


def text(rows: Sequence[CsvRow]) -> str:
    """Return the CSV file of some rows, with the columns image and label."""
    return csv_rows.csv_text([("image", "label"), *((row.image, row.label) for row in rows)])


def _refuse_rare(file: Path, labels: Sequence[str], k: int) -> None:
    # Otherwise no class would be in the validation of every fold.
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
