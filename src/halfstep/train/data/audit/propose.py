"""Writes a config that trains on images in folders or in CSV files (`halfstep init`).

The layout of the files determines the section `data`. The number of images and classes and the size
of the images determine the other fields, which are only a starting point. If the images are not
split, `folds` takes a fifth of them for validation.
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, UnidentifiedImageError

from halfstep.errors import UserError
from halfstep.files import write_atomically
from halfstep.train.config.data import ColumnsConfig
from halfstep.train.config.files import load
from halfstep.train.data.audit import check, folds
from halfstep.train.data.pipeline import batch_size
from halfstep.train.data.sources import class_names, csv_rows, image_tree, row_files
from halfstep.train.data.sources.faults import warn_of
from halfstep.train.data.sources.image_tree import LeftOut
from halfstep.train.data.sources.source import spread
from halfstep.yaml_text import dump, parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.train.data.sources.csv_rows import CsvRow
    from halfstep.train.data.sources.faults import Notice

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
_RESOLUTIONS = (32, 48, 64, 96, 128, 160, 192, 224)
_PHOTOGRAPHS = 96
"""Resolution in pixels from which crops of random size still show enough of an image."""
_LOOKED_AT = 64
_STEPS = 1000
"""Approximate number of optimizer steps of the proposed run, within the limits of `_EPOCHS`."""
_EPOCHS = (10, 60)
_FOLDS = 5


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
        notices: Remarks about the images.
    """

    section: dict[str, Any]
    classes: int
    train: int
    valid: int
    images: Sequence[Path]
    how: str
    notices: tuple[Notice, ...] = ()


def propose(place: Path, out: Path, *, overwrite: bool = False) -> list[str]:
    """Write a config that trains on the images of a folder or of a CSV file.

    If the images are not split, a split is written as two CSV files into the folder of the config.

    Returns:
        Lines that say what was found and what was written.

    Raises:
        UserError: If no images with classes are found, if a run would refuse them, or if a file
            already exists and `overwrite` is False.

    Warns:
        DataWarning: About the notices of the data set.
    """
    if out.exists() and not overwrite:
        raise UserError(f"{out} is there already; write --overwrite to replace it, or --out FILE")
    found = _look(place, out.parent, overwrite=overwrite)
    side = _side(found.images)
    text = _config(place, found, side)
    config = load({"name": out.stem, **parse(text, str(out))})
    faults = check.whole_set(config)
    for fault in faults:
        if fault.kind == "refused":
            raise UserError(f"{place}: {fault.detail}")
    write_atomically(out, text)
    warn_of((*(notice.text for notice in found.notices), *(fault.detail for fault in faults)))
    images = f"{found.train} images to learn from and {found.valid} for validation"
    return [
        f"found: {found.how}",
        f"{found.classes} classes, {images}, {side} pixels at the shorter side",
        f"written: {out}; its comments say what to change",
        f"next: halfstep data check {out}, then halfstep train {out}",
    ]


def _look(place: Path, beside: Path, *, overwrite: bool) -> Found:
    if place.is_file():
        return _of_list(place, beside, overwrite=overwrite)
    if not place.is_dir():
        raise UserError(f"{str(place)!r} does not exist; write a folder of images, or a CSV file")
    train, valid = (_split_folder(place, names) for names in (_TRAIN, _VALID))
    if train is not None and valid is not None:
        return _of_folders(place, train, valid)
    pairs = [(f"{train}.csv", f"{valid}.csv") for train in _TRAIN for valid in _VALID]
    lists = {file.name: file for file in sorted(place.glob("*.csv")) if _is_list(file)}
    for first, second in (("train_fold0.csv", "valid_fold0.csv"), *pairs):
        if first in lists and second in lists:
            return _of_two_lists(lists[first], lists[second])
    if lists:
        best = lists.get("train.csv", next(iter(lists.values())))
        return _of_list(best, beside, overwrite=overwrite)
    left_out = LeftOut()
    by_class = _by_class(place, left_out)
    if len(by_class) > 1:
        found = _of_class_folders(place, by_class, beside, overwrite=overwrite)
        return replace(found, notices=(*found.notices, *left_out.notices(place)))
    unread = f"; it has {left_out.unread}" if left_out.unread else ""
    raise UserError(
        f"{str(place)!r} holds no images with classes; allowed: a folder for each class, such "
        f"folders in train and val, or a CSV file with the columns image and label{unread}"
    )


def _by_class(place: Path, left_out: LeftOut) -> dict[str, list[str]]:
    """Return the images in each subfolder that contains images, at any depth."""
    found = image_tree.by_class(place, left_out)
    return {name: images for name, images in found.items() if images}


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
    place: Path, by_class: Mapping[str, Sequence[str]], beside: Path, *, overwrite: bool
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
        return _split(listed, place, csv_rows.STANDARD, beside, how, overwrite=overwrite)


def _of_list(file: Path, beside: Path, *, overwrite: bool) -> Found:
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
        return _written(fold, root, beside, how, overwrite=overwrite)
    if not any(row.split for row in rows):
        return _split(file, root, columns, beside, f"{how}, without a split", overwrite=overwrite)
    train = [row for row in rows if row.split == "train"]
    return _of_csv(root, (file, None), columns, train, len(rows) - len(train), how)


def _of_two_lists(train: Path, valid: Path) -> Found:
    columns = _columns(train) or csv_rows.STANDARD
    rows = csv_rows.read(train, columns)
    how = f"images listed by {train} and {valid}"
    others = len(csv_rows.read(valid, columns))
    return _of_csv(_root(train, rows), (train, valid), columns, rows, others, how)


def _split(
    file: Path, root: Path, columns: ColumnsConfig, beside: Path, how: str, *, overwrite: bool
) -> Found:
    """Split the rows of a CSV file, and write both parts into the folder of the config."""
    made = folds.split(file, root, k=_FOLDS, seed=0, columns=columns)
    found = _written(made.folds[0], root, beside, how, overwrite=overwrite)
    return replace(found, notices=made.notices)


def _written(fold: folds.Fold, root: Path, beside: Path, how: str, *, overwrite: bool) -> Found:
    train, valid = folds.write([fold], beside, overwrite=overwrite)
    how = f"{how}; {train} and {valid} hold one such split"
    return _of_csv(root, (train, valid), csv_rows.STANDARD, fold.train, len(fold.valid), how)


def _of_csv(
    root: Path,
    files: tuple[Path, Path | None],
    columns: ColumnsConfig,
    train: Sequence[CsvRow],
    valid: int,
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
    classes = len({row.label for row in train})
    some = [train[index] for index in spread(len(train), _LOOKED_AT)]
    images = [root / row.image for row in row_files.locate(str(files[0]), some, root).rows]
    return Found(section, classes, len(train), valid, images, how)


def _is_list(file: Path) -> bool:
    return not image_tree.is_hidden(file.name) and _columns(file) is not None


def _columns(file: Path) -> ColumnsConfig | None:
    """Return the column names of a CSV file; None if it has none for images and classes."""
    there = {name.lower(): name for name in _header(file)}
    found = {
        key: next((there[name] for name in names if name in there), None)
        for key, names in _COLUMNS.items()
    }
    if found["image"] is None or found["label"] is None:
        return None
    return ColumnsConfig(**{key: name for key, name in found.items() if name is not None})


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
        each
        for each in file.parent.iterdir()
        if each.is_dir() and not image_tree.is_hidden(each.name)
    )
    for root in (file.parent, *beside):
        if not row_files.locate(str(file), rows[:1], root).missing:
            return root
    raise UserError(
        f"{file}, row {rows[0].number}: {rows[0].image!r} lies neither beside the file nor in a "
        "folder beside it; move the file to where its paths start from"
    )


def _side(images: Sequence[Path]) -> int:
    """Return the median of the shorter sides of some images."""
    sides = []
    for path in images:
        try:
            with Image.open(path) as image:
                sides.append(min(image.size))
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
            continue  # `halfstep data check` says what is wrong with it.
    if not sides:
        named = ", ".join(map(str, images[:1])) or "there is none"
        raise UserError(f"no training image that was looked at can be read: {named}")
    return int(statistics.median(sides))


def _config(place: Path, found: Found, side: int) -> str:
    resolution = max((each for each in _RESOLUTIONS if each <= side), default=_RESOLUTIONS[0])
    size = batch_size.propose(found.train)
    epochs = -(-_STEPS // (found.train // size))
    augment = "crop-flip" if resolution >= _PHOTOGRAPHS else "pad-flip"
    section: Mapping[str, Any] = {
        **found.section,
        "resolution": resolution,
        "augment": {"preset": augment},
    }
    # As JSON, because a JSON string is valid YAML whatever the name of the folder.
    description = json.dumps(f"{found.classes} classes of images in {place}", ensure_ascii=False)
    return (
        f"description: {description}\n"
        f"# A first run of {found.train} images. halfstep config show FILE explains every field.\n"
        f"epochs: {min(max(epochs, _EPOCHS[0]), _EPOCHS[1])}\n"
        f"batch_size: {size}\n"
        "# Images are mirrored half the time; write preset: none for text and digits.\n"
        f"{dump({'data': section})}"
        "# With pretrained: true its weights are downloaded, and few images go much further.\n"
        'model: {name: "timm:resnet18", pretrained: false}\n'
        "optimizer: {name: adamw, lr: 1e-3, weight_decay: 0.05}\n"
        "schedule: {name: cosine, warmup_epochs: 1}\n"
    )
