"""Splits an annotated CSV file into k folds, each a file for training and one for validation.

Every class has the same share of each fold (scikit-learn's `StratifiedKFold`), and identical images
stay together: an image that is in training under another name would flatter the validation. Each of
them counts once, so that no class has more of a fold by its copies; `StratifiedGroupKFold` would
count all copies, and balances classes by a greedy search: a class's share of a fold is then up to
0.16 from a fifth, and here up to 0.04, as near as whole images allow (`benchmarks/kept.py`).
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

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
    """One way to split the rows.

    Attributes:
        train: Rows to learn from, in the order of the file.
        valid: The others.
    """

    train: tuple[CsvRow, ...]
    valid: tuple[CsvRow, ...]


@dataclass(frozen=True, slots=True)
class Folds:
    """All folds of a file.

    Attributes:
        folds: Each row is for validation in exactly one of them.
        identical: How many images are listed more than once, under whatever names.
        conflicting: How many of these have different labels.
    """

    folds: tuple[Fold, ...]
    identical: int
    conflicting: int


def split(
    file: Path, root: Path, *, k: int, seed: int, columns: ColumnsConfig = csv_rows.STANDARD
) -> Folds:
    """Split the rows of a CSV file.

    Args:
        file: Its columns are image and label; it must have no column split.
        root: Folder that its paths start from.
        k: Number of folds.
        seed: Decides which images share a fold.
        columns: What the file calls its columns.

    Raises:
        UserError: If the file is no such CSV, if images are missing, or if a class has too few
            distinct images to be in both parts of every fold.
    """
    rows = csv_rows.read(file, columns)
    if any(row.split for row in rows):
        raise UserError(f"{file} has a column split, which folds would contradict; remove it")
    missing = csv_list.missing(str(file), rows, root, "--root FOLDER")
    if missing is not None:
        raise missing
    groups = duplicates.groups([root / row.image for row in rows])
    if len(groups) < k:
        raise UserError(f"{file} has {len(groups)} distinct images; allowed: --k 2 to that many")
    labels = [rows[group[0]].label for group in groups]
    from sklearn.model_selection import StratifiedKFold

    splitter = StratifiedKFold(k, shuffle=True, random_state=seed)
    parts = []
    with warnings.catch_warnings():  # of classes with fewer images than folds, which may be
        warnings.filterwarnings("ignore", "The least populated class")
        _refuse_rare(file, labels, k)
        for _, chosen in splitter.split(np.zeros(len(groups)), labels):
            parts.append({index for number in chosen for index in groups[number]})
    folds = tuple(fold(rows, valid) for valid in parts)
    _refuse_unlearnable(file, folds)
    several = [{rows[index].label for index in group} for group in groups if len(group) > 1]
    return Folds(folds, len(several), sum(len(names) > 1 for names in several))


def write(folds: Sequence[Fold], out: Path, *, overwrite: bool = False) -> list[Path]:
    """Write train_fold0.csv, valid_fold0.csv and so on into a folder; return the files.

    Raises:
        UserError: If one of them is there already; none is written then.
    """
    contents = {
        out / f"{name}_fold{number}.csv": _text(rows)
        for number, fold in enumerate(folds)
        for name, rows in (("train", fold.train), ("valid", fold.valid))
    }
    there = [path for path in contents if path.exists()]
    if there and not overwrite:
        raise UserError(
            f"{there[0]} is there already; write --overwrite to replace it, or --out FOLDER"
        )
    for path, text in contents.items():
        write_atomically(path, text)
    return list(contents)


def fold(rows: Sequence[CsvRow], valid: set[int]) -> Fold:
    """Return a fold whose rows for validation are those at some places."""
    return Fold(
        tuple(row for index, row in enumerate(rows) if index not in valid),
        tuple(row for index, row in enumerate(rows) if index in valid),
    )


def _text(rows: Sequence[CsvRow]) -> str:
    return csv_rows.csv_text([("image", "label"), *((row.image, row.label) for row in rows)])


def _refuse_rare(file: Path, labels: Sequence[str], k: int) -> None:
    # StratifiedKFold wants one class at least that can be in every fold.
    name, most = Counter(labels).most_common(1)[0]
    if most < k:
        raise UserError(
            f"{file}: no class has {k} distinct images (the most has {name!r}: {most}); "
            f"write --k {max(most, 2)} or less"
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
