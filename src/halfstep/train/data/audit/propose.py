"""Writes a config that trains on images in folders or in CSV files (`halfstep init`).

The layout of the files (`layout`) determines the section `data`. The number of images and classes
and the size of the images determine the other fields, which are only a starting point.

Nothing is written unless everything is in order. Neither this file nor anything that it uses
imports torch, so that `init` takes no longer than the reading of the images.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, UnidentifiedImageError

from halfstep import caller
from halfstep.errors import UserError
from halfstep.files import write_atomically
from halfstep.train.config.data import FolderConfig
from halfstep.train.config.files import load
from halfstep.train.data.audit import layout
from halfstep.train.data.pipeline import batch_size
from halfstep.train.data.sources import class_names, csv_list, image_folder
from halfstep.train.data.sources.csv_list import MissingImages
from halfstep.train.data.sources.faults import warn_of
from halfstep.yaml_text import dump, parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.train.config import Config
    from halfstep.train.data.audit.layout import Found
    from halfstep.train.data.sources.faults import Notice

_RESOLUTIONS = (32, 48, 64, 96, 128, 160, 192, 224)
_PHOTOGRAPHS = 96
"""Resolution in pixels from which crops of random size still show enough of an image."""
_STEPS = 1000
"""Approximate number of optimizer steps of the proposed run, within the limits of `_EPOCHS`."""
_EPOCHS = (10, 60)


def propose(place: Path, out: Path, *, overwrite: bool = False) -> list[str]:
    """Write a config that trains on the images of a folder or of a CSV file.

    If the images are not split, a split is written as two CSV files beside the config, whose names
    begin with that of the config.

    Returns:
        Lines that say what was found and what was written.

    Raises:
        UserError: If no images with classes are found, if a run would refuse them, or if a file
            already exists and `overwrite` is False.

    Warns:
        DataWarning: About the notices of the data set.
    """
    if out.exists() and not overwrite:
        raise UserError(
            f"{out} is there already; write {caller.setting(overwrite=True)} to replace it, or "
            f"{caller.setting(out='FILE')}"
        )

    def split_files(listed: Path) -> tuple[Path, Path]:
        names = [out.with_name(f"{out.stem}_{split}.csv") for split in ("train", "valid")]
        for file in names:
            if file.exists() and (not overwrite or file.samefile(listed)):
                replace = (
                    "" if overwrite else f"{caller.setting(overwrite=True)} to replace it, or "
                )
                raise UserError(
                    f"{file}, for the split of {out}, is there already; write {replace}"
                    f"{caller.setting(out='FILE')}"
                )
        return names[0], names[1]

    source = layout.look(place, split_files)
    side = _side(source.images)
    text = _config(place, source, side)
    config = load({"name": out.stem, **parse(text, str(out))})
    try:
        notices = (*source.notices, *_examine(config, source))
    except UserError as error:
        raise UserError(f"{place}: {error}") from error
    for file, content in (*source.files.items(), (out, text)):
        write_atomically(file, content)
    warn_of(notice.text for notice in notices)
    images = f"{source.train} images to learn from and {source.valid} for validation"
    written = " and ".join(map(str, source.files))
    return [
        f"found: {source.how}",
        f"{source.classes} classes, {images}, {side} pixels at the shorter side",
        f"written: {out}; its comments say what to change",
        *([f"written: {written}, the split of {out}"] if written else []),
        f"next: halfstep data check {out}, then halfstep train {out}",
    ]


def _examine(config: Config, source: Found) -> list[Notice]:
    """Return the notices about the data set, and raise the first reason why a run would refuse it.

    A run also refuses a list with missing images, which `halfstep data check` counts one by one.
    """
    if isinstance(config.data, FolderConfig):
        folders = image_folder.load(config.data)
        names, notices = folders.classes, list(folders.notices)
    else:
        root = Path(source.section["root"])
        for reason in csv_list.refusals(source.lists, root):
            if not isinstance(reason, MissingImages):
                raise reason
        names = csv_list.classes(source.lists[0].rows)
        notices = [notice for located in source.lists for notice in located.notices()]
    batch_size.refuse(config, source.train)
    return [*notices, *class_names.examine(names)]


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


def _config(place: Path, source: Found, side: int) -> str:
    resolution = max((pixels for pixels in _RESOLUTIONS if pixels <= side), default=_RESOLUTIONS[0])
    size = batch_size.propose(source.train)
    epochs = -(-_STEPS // (source.train // size))
    augment = "crop-flip" if resolution >= _PHOTOGRAPHS else "pad-flip"
    section: Mapping[str, Any] = {
        **source.section,
        "resolution": resolution,
        "augment": {"preset": augment},
    }
    # As JSON, because a JSON string is valid YAML whatever the name of the folder.
    description = json.dumps(f"{source.classes} classes of images in {place}", ensure_ascii=False)
    return (
        f"description: {description}\n"
        f"# A first run of {source.train} images. halfstep config show FILE explains every field.\n"
        f"epochs: {min(max(epochs, _EPOCHS[0]), _EPOCHS[1])}\n"
        f"batch_size: {size}\n"
        "# Images are mirrored half the time; write preset: none for text and digits.\n"
        f"{dump({'data': section})}"
        "# With pretrained: true its weights are downloaded, and few images go much further.\n"
        'model: {name: "timm:resnet18", pretrained: false}\n'
        "optimizer: {name: adamw, lr: 1e-3, weight_decay: 0.05}\n"
        "schedule: {name: cosine, warmup_epochs: 1}\n"
    )
