"""Shapes of images in place of a data set: a predicted cost does not depend on pixels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from halfstep.errors import UserError

LIBRARIES = ("timm:", "torchvision:")
"""Prefixes of the name of a model that is given in place of a config."""

_IMAGE_SHAPE = (3, 224, 224)
_CLASSES = 1000
_BATCH = 64


@dataclass(frozen=True, slots=True)
class Images:
    """Images without pixels.

    Attributes:
        shape: Channels, height and width of an image, as the model gets it.
        classes: The number of classes.
    """

    shape: tuple[int, int, int] = _IMAGE_SHAPE
    classes: int = _CLASSES


def is_library(name: str) -> bool:
    """Tell whether a subject is the name of a library's model, such as "timm:resnet50"."""
    return name.startswith(LIBRARIES)


def settings(name: str) -> dict[str, Any]:
    """Return the config of a library's model, with the trainer's usual SGD and no data set."""
    return {
        "name": name.partition(":")[2],
        "epochs": 1,
        "batch_size": _BATCH,
        "data": {"name": "digits"},
        "model": {"name": name},
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
        "schedule": {"name": "constant"},
    }


def images(name: str, shape: str | None, classes: int | None) -> Images | None:
    """Return the images of the flags `--shape` and `--classes`; None if the data set is to be read.

    Args:
        name: The subject; a library's model has images of 3x224x224 and 1000 classes by default.
        shape: The value of `--shape`.
        classes: The value of `--classes`.

    Raises:
        UserError: If a flag is missing or wrong.
    """
    if shape is None and classes is None and not is_library(name):
        return None
    if not is_library(name) and (shape is None or classes is None):
        missing, example = ("--classes", "1000") if classes is None else ("--shape", "3x224x224")
        raise UserError(
            f"--shape and --classes replace a data set together; add {missing} {example}"
        )
    return Images(_shape(shape) if shape else _IMAGE_SHAPE, classes or _CLASSES)


def _shape(text: str) -> tuple[int, int, int]:
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", text.strip().lower())
    if found is None:
        raise UserError(
            f"--shape is {text!r}; allowed: channels, height and width, such as 3x224x224"
        )
    channels, height, width = map(int, found.groups())
    return channels, height, width
