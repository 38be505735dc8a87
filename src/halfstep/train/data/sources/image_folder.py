"""Images in folders named after their classes: torchvision's ImageFolder layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

from halfstep import caller
from halfstep.errors import UserError, closest
from halfstep.train.data.sources.pictures import Pictures, Texts, folder
from halfstep.train.data.sources.source import Source, limited

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from halfstep.train.config.data import FolderConfig


def load(config: FolderConfig) -> Source:
    """Return the images under `config.root`; the folders of the training split are the classes.

    Raises:
        UserError: If a folder is missing or empty, or if validation has a class that training does
            not have.
    """
    root = folder(config.root)
    parts = {"train": config.train.folder, "val": config.val.folder}
    found = {key: _classes(root, name, key) for key, name in parts.items()}
    classes = found["train"]
    if len(classes) < 2:
        raise UserError(
            f"{root / parts['train']} has one folder, {classes[0]!r}; allowed: one for each of "
            "two or more classes"
        )
    for name in found["val"]:
        if name not in classes:
            raise UserError(
                f"{root / parts['val'] / name} is a class that {root / parts['train']} has no "
                f"folder for; remove it, or add such images to training{closest(name, classes)}"
            )
    numbers = {name: number for number, name in enumerate(classes)}
    train = _pictures(root / parts["train"], numbers, must_have=classes)
    val = _pictures(root / parts["val"], numbers, must_have=())
    return Source(limited(train, config.train), limited(val, config.val), classes)


def _classes(root: Path, name: str, key: str) -> tuple[str, ...]:
    split = root / name
    if not split.is_dir():
        known = _folders(root)
        there = f"it has {', '.join(known[:10])}" if known else "it has no folders"
        raise UserError(
            f"data.{key}.folder is {name!r}, which {str(root)!r} does not hold; {there}; "
            f"write {caller.fields({f'data.{key}.folder': ...})}"
        )
    found = _folders(split)
    if not found:
        raise UserError(f"{split} has no folders; allowed: one of images for each class")
    return found


def _folders(root: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in root.iterdir() if entry.is_dir()))


def _pictures(split: Path, numbers: Mapping[str, int], must_have: tuple[str, ...]) -> Pictures:
    files = make_dataset(str(split), dict(numbers), IMG_EXTENSIONS, allow_empty=True)
    labels = np.array([label for _, label in files], dtype=np.int64)
    there = set(labels.tolist())
    for name in must_have:
        if numbers[name] not in there:
            raise UserError(
                f"{split / name} holds no image; allowed: files ending in "
                f"{', '.join(IMG_EXTENSIONS)}; remove the folder, or fill it"
            )
    if not files:
        raise UserError(f"{split} holds no image; allowed: {', '.join(IMG_EXTENSIONS)}")
    prefix = len(str(split)) + 1
    return Pictures(split, Texts.pack([path[prefix:] for path, _ in files]), labels)
