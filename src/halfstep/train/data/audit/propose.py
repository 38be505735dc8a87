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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, UnidentifiedImageError
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from halfstep import caller
from halfstep.errors import UserError
from halfstep.files import write_atomically
from halfstep.train.config.data import ColumnsConfig
from halfstep.train.config.files import load
from halfstep.train.data.audit import check, folds
from halfstep.train.data.sources import csv_rows
from halfstep.yaml_text import dump, parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.train.data.sources.csv_rows import CsvRow

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
        images: Paths of the training images.
        how: Description of the found images in one line.
    """

    section: dict[str, Any]
    classes: int
    train: int
    valid: int
    images: Sequence[Path]
    how: str


def propose(place: Path, out: Path, *, overwrite: bool = False) -> list[str]:
    """Write a config that trains on the images of a folder or of a CSV file.

    If the images are not split, a split is written as two CSV files into the folder of the config.

    Returns:
        Lines that say what was found and what was written.

    Raises:
        UserError: If no images with classes are found, if a run would refuse them, or if a file
            already exists and `overwrite` is False.
    """
    if out.exists() and not overwrite:
        raise UserError(
            f"{out} is there already; write {caller.setting(overwrite=True)} to replace it, or "
            f"{caller.setting(out='FILE')}"
        )
    found = _look(place, out.parent, overwrite=overwrite)
    side = _side(found.images)
    text = _config(place, found, side)
    config = load({"name": out.stem, **parse(text, str(out))})
    for fault in check.refused(config):
        raise UserError(f"{place}: {fault.detail}")
    write_atomically(out, text)
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
    train, valid = (
        next((name for name in names if _class_folders(place / name)), None)
        for names in (_TRAIN, _VALID)
    )
    if train is not None and valid is not None:
        return _of_folders(place, train, valid)
    pairs = [(f"{train}.csv", f"{valid}.csv") for train in _TRAIN for valid in _VALID]
    lists = {file.name: file for file in sorted(place.glob("*.csv")) if _columns(file) is not None}
    for first, second in (("train_fold0.csv", "valid_fold0.csv"), *pairs):
        if first in lists and second in lists:
            return _of_two_lists(lists[first], lists[second])
    if lists:
        best = lists.get("train.csv", next(iter(lists.values())))
        return _of_list(best, beside, overwrite=overwrite)
    if len(_class_folders(place)) > 1:
        return _of_class_folders(place, beside, overwrite=overwrite)
    raise UserError(
        f"{str(place)!r} holds no images with classes; allowed: a folder for each class, such "
        "folders in train and val, or a CSV file with the columns image and label"
    )


def _class_folders(place: Path) -> list[str]:
    """Return the names of the subfolders that contain images, at any depth."""
    if not place.is_dir():
        return []
    folders = sorted(each for each in place.iterdir() if each.is_dir())
    return [each.name for each in folders if any(map(_is_image, each.rglob("*")))]


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in IMG_EXTENSIONS and file.is_file()


def _of_folders(place: Path, train: str, valid: str) -> Found:
    found = {}
    for name in (train, valid):
        classes = {each: number for number, each in enumerate(_class_folders(place / name))}
        found[name] = make_dataset(str(place / name), classes, IMG_EXTENSIONS, allow_empty=True)
    section = {"train": {"folder": train}, "val": {"folder": valid}}
    return Found(
        {"name": "folder", "root": str(place), **section},
        len(_class_folders(place / train)),
        len(found[train]),
        len(found[valid]),
        [Path(path) for path, _ in found[train]],
        f"a folder for each class in {place / train} and {place / valid}",
    )


def _of_class_folders(place: Path, beside: Path, *, overwrite: bool) -> Found:
    rows = [
        (file.relative_to(place).as_posix(), name)
        for name in _class_folders(place)
        for file in sorted(filter(_is_image, (place / name).rglob("*")))
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
    fold = folds.split(file, root, k=_FOLDS, seed=0, columns=columns).folds[0]
    return _written(fold, root, beside, how, overwrite=overwrite)


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
    return Found(section, classes, len(train), valid, [root / row.image for row in train], how)


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
    beside = sorted(each for each in file.parent.iterdir() if each.is_dir())
    for root in (file.parent, *beside):
        if (root / rows[0].image).is_file():
            return root
    raise UserError(
        f"{file}, row {rows[0].number}: {rows[0].image!r} lies neither beside the file nor in a "
        "folder beside it; move the file to where its paths start from"
    )


def _side(images: Sequence[Path]) -> int:
    """Return the median of the shorter sides of some images."""
    sides = []
    for path in images[:: max(1, len(images) // _LOOKED_AT)]:
        try:
            with Image.open(path) as image:
                sides.append(min(image.size))
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError):
            continue  # `halfstep data check` says what is wrong with it.
    if not sides:
        raise UserError(f"{images[0]} and the other images looked at cannot be read")
    return int(statistics.median(sides))


def _config(place: Path, found: Found, side: int) -> str:
    resolution = max((each for each in _RESOLUTIONS if each <= side), default=_RESOLUTIONS[0])
    batch_size = 2 ** max(3, min(6, (found.train // 8).bit_length() - 1))
    epochs = -(-_STEPS // max(1, found.train // batch_size))
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
        f"batch_size: {batch_size}\n"
        "# Images are mirrored half the time; write preset: none for text and digits.\n"
        f"{dump({'data': section})}"
        "# With pretrained: true its weights are downloaded, and few images go much further.\n"
        'model: {name: "timm:resnet18", pretrained: false}\n'
        "optimizer: {name: adamw, lr: 1e-3, weight_decay: 0.05}\n"
        "schedule: {name: cosine, warmup_epochs: 1}\n"
    )
