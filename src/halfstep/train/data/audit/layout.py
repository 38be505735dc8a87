"""Recognises how the images of a data set are stored: in folders, or listed by CSV files.

Images that are not split are split here, with a fifth of them for validation. No file is written.
"""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfstep.errors import UserError
from halfstep.train.config.data import ColumnsConfig
from halfstep.train.data.audit import folds
from halfstep.train.data.sources import class_names, csv_list, csv_rows, image_tree, row_files
from halfstep.train.data.sources.image_tree import LeftOut
from halfstep.train.data.sources.source import spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.train.data.sources.csv_rows import CsvRow
    from halfstep.train.data.sources.faults import Notice
    from halfstep.train.data.sources.row_files import LocatedRows

_TRAIN = ("train", "training")
_VALID = ("val", "valid", "validation", "test")
_COLUMNS = {
    "image": [
        *("image", "filename", "file_name", "file", "filepath"),
        *("path", "image_path", "img", "image_id"),
    ],
    "label": ["label", "class", "category", "species", "target", "breed", "name"],
    "split": ["split"],
}
_SEPARATORS = re.compile(r"[,;\t]")
_LOOKED_AT = 64
_FOLDS = 5

SplitFiles = Callable[[Path], tuple[Path, Path]]
"""Returns the files for a split of the images at a path: for training and for validation.

Raises a `UserError` if the files may not be written.
"""


@dataclass(frozen=True, slots=True)
class Found:
    """The images that were found, and their classes.

    Attributes:
        section: The section `data` of the config, without resolution and augmentation.
        classes: Number of classes.
        train: Number of training images.
        valid: Number of validation images.
        images: Paths of some training images, spread over all of them.
        how: Description of the found images in one line.
        lists: The rows for training and for validation; empty for images in folders.
        files: The files to write for a split that was made here, with their contents.
        notices: Remarks about the images.
    """

    section: dict[str, Any]
    classes: int
    train: int
    valid: int
    images: Sequence[Path]
    how: str
    lists: tuple[LocatedRows, ...] = ()
    files: Mapping[Path, str] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()


def look(place: Path, split_files: SplitFiles) -> Found:
    """Return the images of a folder or of a CSV file.

    Args:
        place: The folder or the file.
        split_files: Called before images are split.

    Raises:
        UserError: If there are no images with classes, or if they cannot be split.
    """
    if place.is_file():
        return _of_list(place, split_files)
    if not place.is_dir():
        raise UserError(f"{str(place)!r} does not exist; write a folder of images, or a CSV file")
    train, valid = (_split_folder(place, names) for names in (_TRAIN, _VALID))
    if train is not None and valid is not None:
        return _of_folders(place, train, valid)
    lists = {file.name: file for file in sorted(place.glob("*.csv")) if _is_list(file)}
    if pair := _pair(lists):
        return _of_two_lists(*pair)
    if lists:
        return _of_list(lists.get("train.csv", next(iter(lists.values()))), split_files)
    left_out = LeftOut()
    by_class = _by_class(place, left_out)
    if len(by_class) > 1:
        layout = _of_class_folders(place, by_class, split_files)
        return replace(layout, notices=(*layout.notices, *left_out.notices(place)))
    unread = f"; it has {left_out.unread}" if left_out.unread else ""
    raise UserError(
        f"{str(place)!r} holds no images with classes; allowed: a folder for each class, such "
        f"folders in train and val, or a CSV file with the columns image and label{unread}"
    )


def _pair(lists: Mapping[str, Path]) -> tuple[Path, Path] | None:
    """Return two lists whose names differ only in the word for the split; folds come first."""
    for name in sorted(lists, key=lambda name: ("fold" not in name, name)):
        for train, valid in itertools.product(_TRAIN, _VALID):
            other = name.replace(train, valid)
            if other != name and other in lists:
                return lists[name], lists[other]
    return None


def _by_class(place: Path, left_out: LeftOut) -> dict[str, list[str]]:
    """Return the images in each subfolder that contains images, at any depth."""
    folders = image_tree.by_class(place, left_out)
    return {name: images for name, images in folders.items() if images}


def _split_folder(place: Path, names: Sequence[str]) -> tuple[str, dict[str, list[str]]] | None:
    """Return the first of the folders that contains classes, with the images of each class."""
    for name in names:
        if (place / name).is_dir() and (by_class := _by_class(place / name, LeftOut())):
            return name, by_class
    return None


def _of_folders(
    place: Path, train: tuple[str, dict[str, list[str]]], valid: tuple[str, dict[str, list[str]]]
) -> Found:
    names = place / train[0], place / valid[0]
    images = [path for paths in train[1].values() for path in paths]
    section = {"train": {"folder": train[0]}, "val": {"folder": valid[0]}}
    return Found(
        {"name": "folder", "root": str(place), **section},
        len(train[1]),
        len(images),
        sum(map(len, valid[1].values())),
        [names[0] / images[index] for index in spread(len(images), _LOOKED_AT)],
        f"a folder for each class in {names[0]} and {names[1]}",
    )


def _of_class_folders(
    place: Path, by_class: Mapping[str, Sequence[str]], split_files: SplitFiles
) -> Found:
    class_names.examine(tuple(by_class))  # rather than as rows of a file that the user has not made
    rows = [
        (path.as_posix(), name)
        for name, paths in by_class.items()
        for path in sorted(map(Path, paths))
    ]
    with tempfile.TemporaryDirectory() as scratch:
        listed = Path(scratch) / "images.csv"
        listed.write_text(csv_rows.csv_text([("image", "label"), *rows]), encoding="utf-8")
        how = f"a folder for each class in {place}, without a split"
        return _split(listed, place, csv_rows.STANDARD, split_files, how)


def _of_list(file: Path, split_files: SplitFiles) -> Found:
    columns = _columns(file)
    if columns is None:
        raise UserError(
            f"{file} has no columns that name images and their classes; rename them to image and "
            "label"
        )
    rows = csv_rows.read(file, columns)
    root = _root(file, rows)
    how = f"{len(rows)} images listed by {file}"
    number = next((name for name in _header(file) if name.lower() == "fold"), None)
    if not any(row.split for row in rows) and number is not None:
        # Read the numbers of the folds by naming their column as that of the labels.
        numbered = csv_rows.read(file, columns.model_copy(update={"label": number}))
        first = min((row.label for row in numbered), key=lambda number: (len(number), number))
        fold = folds.fold(rows, {at for at, row in enumerate(numbered) if row.label == first})
        how = f"{how}, of which fold {first} is for validation"
        return _of_fold(fold, root, split_files(file), how)
    if not any(row.split for row in rows):
        return _split(file, root, columns, split_files, f"{how}, without a split")
    train, valid = (of_split for _, of_split in csv_list.splits(file, rows))
    return _of_csv(root, (file, None), columns, train, valid, how)


def _of_two_lists(train: Path, valid: Path) -> Found:
    columns = _columns(train) or csv_rows.STANDARD
    how = f"images listed by {train} and {valid}"

    def rows(file: Path, split: str) -> list[CsvRow]:
        listed = csv_rows.read(file, columns)
        return csv_list.of_split(file, listed, split if listed and listed[0].split else "")

    first, second = rows(train, "train"), rows(valid, "val")
    return _of_csv(_root(train, first), (train, valid), columns, first, second, how)


def _split(
    file: Path, root: Path, columns: ColumnsConfig, split_files: SplitFiles, how: str
) -> Found:
    """Split the rows of a CSV file."""
    files = split_files(file)  # refused before all images are read
    made = folds.split(file, root, k=_FOLDS, seed=0, columns=columns)
    return replace(_of_fold(made.folds[0], root, files, how), notices=made.notices)


def _of_fold(fold: folds.Fold, root: Path, files: tuple[Path, Path], how: str) -> Found:
    train, valid = files
    layout = _of_csv(root, files, csv_rows.STANDARD, fold.train, fold.valid, how)
    return replace(layout, files={train: folds.text(fold.train), valid: folds.text(fold.valid)})


def _of_csv(
    root: Path,
    files: tuple[Path, Path | None],
    columns: ColumnsConfig,
    train: Sequence[CsvRow],
    valid: Sequence[CsvRow],
    how: str,
) -> Found:
    named = columns.model_dump(exclude_defaults=True)
    section = {
        "name": "csv",
        "root": str(root),
        **({"columns": named} if named else {}),
        "train": {"ann_file": str(files[0])},
        "val": {"ann_file": None if files[1] is None else str(files[1])},
    }
    lists = (
        row_files.locate(str(files[0]), train, root),
        row_files.locate(str(files[1] or files[0]), valid, root),
    )
    rows = lists[0].rows
    images = [root / rows[index].image for index in spread(len(rows), _LOOKED_AT)]
    classes = len({row.label for row in rows})
    return Found(section, classes, len(rows), len(valid), images, how, lists)


def _is_list(file: Path) -> bool:
    return not image_tree.is_hidden(file.name) and _columns(file) is not None


def _columns(file: Path) -> ColumnsConfig | None:
    """Return the column names of a CSV file; None if it has none for images and classes."""
    there = {name.lower(): name for name in _header(file)}
    columns = {
        key: next((there[name] for name in names if name in there), None)
        for key, names in _COLUMNS.items()
    }
    if columns["image"] is None or columns["label"] is None:
        return None
    return ColumnsConfig(**{key: name for key, name in columns.items() if name is not None})


def _header(file: Path) -> list[str]:
    """Return the names in the header of a CSV file; none if the file cannot be read."""
    try:
        with file.open(encoding="utf-8-sig") as text:
            return [name.strip().strip('"') for name in _SEPARATORS.split(text.readline())]
    except (OSError, UnicodeDecodeError):
        return []


def _root(file: Path, rows: Sequence[csv_rows.CsvRow]) -> Path:
    """Return the folder that the paths in a CSV file start from.

    Raises:
        UserError: If there is no such folder, or if the file lists no image.
    """
    if not rows:
        raise UserError(f"{file} lists no image; write one row for each image below its header")
    beside = sorted(
        sibling
        for sibling in file.parent.iterdir()
        if sibling.is_dir() and not image_tree.is_hidden(sibling.name)
    )
    for root in (file.parent, *beside):
        if not row_files.locate(str(file), rows[:1], root).missing:
            return root
    raise UserError(
        f"{file}, row {rows[0].number}: {rows[0].image!r} lies neither beside the file nor in a "
        "folder beside it; move the file to where its paths start from"
    )
