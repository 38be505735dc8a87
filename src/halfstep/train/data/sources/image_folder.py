"""Images in folders named after their classes: torchvision's ImageFolder layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from halfstep import caller
from halfstep.errors import UserError
from halfstep.train.data.sources import image_tree, spelling
from halfstep.train.data.sources.image_tree import SUFFIXES, LeftOut
from halfstep.train.data.sources.pictures import Pictures, Texts, folder
from halfstep.train.data.sources.source import Source, limited

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from halfstep.train.config.data import FolderConfig


def load(config: FolderConfig) -> Source:
    """Return the images under `config.root`; the folders of the training split are the classes.

    Raises:
        UserError: If a folder is missing or empty, or if validation has a class that training does
            not have.
    """
    root = folder(config.root)
    left_out = LeftOut()
    train = _by_class(root, config.train.folder, "train", left_out)
    val = _by_class(root, config.val.folder, "val", left_out)
    train_folder, val_folder = root / config.train.folder, root / config.val.folder
    classes = tuple(train)
    if len(classes) < 2:
        raise UserError(
            f"{train_folder} has one folder, {classes[0]!r}; allowed: one for each of two or more "
            "classes"
        )
    for name in val:
        if name not in train:
            raise UserError(
                f"{val_folder / name} is a class that {train_folder} has no folder for; remove it, "
                f"or add such images to training{spelling.hint(name, classes)}"
            )
    for place, images in [
        *((train_folder / name, train[name]) for name in classes),
        (val_folder, [path for paths in val.values() for path in paths]),
    ]:
        if not images:
            unread = f"; {root} has {left_out.unread}" if left_out.unread else ""
            raise UserError(
                f"{place} holds no image; allowed: files ending in {', '.join(SUFFIXES)}; remove "
                f"the folder, or fill it{unread}"
            )
    numbers = {name: number for number, name in enumerate(classes)}
    return Source(
        limited(_pictures(train_folder, train, numbers), config.train),
        limited(_pictures(val_folder, val, numbers), config.val),
        classes,
        notices=left_out.notices(root),
    )


def _by_class(root: Path, name: str, key: str, left_out: LeftOut) -> dict[str, list[str]]:
    split = root / name
    if not split.is_dir():
        known = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
        there = f"it has {', '.join(known[:10])}" if known else "it has no folders"
        raise UserError(
            f"data.{key}.folder is {name!r}, which {str(root)!r} does not hold; {there}; "
            f"write {caller.fields({f'data.{key}.folder': ...})}"
        )
    folders = image_tree.by_class(split, left_out)
    if not folders:
        raise UserError(f"{split} has no folders; allowed: one of images for each class")
    return folders


def _pictures(
    split: Path, by_class: Mapping[str, Sequence[str]], numbers: Mapping[str, int]
) -> Pictures:
    files = [(path, numbers[name]) for name, paths in by_class.items() for path in paths]
    labels = np.array([label for _, label in files], dtype=np.int64)
    return Pictures(split, Texts.pack([path for path, _ in files]), labels)
