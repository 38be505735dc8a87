"""Reads CIFAR's files without checksums: copies with changed pixels, for example after JPEG.

The files are pickles. torchvision relies on the checksums; this reader instead lets a pickle create
only arrays, text and numbers, so that a copy of unknown origin cannot run code. The names of the
files and the keys in them come from torchvision's classes.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torchvision.datasets import CIFAR10, CIFAR100

from halfstep import caller
from halfstep.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

LAYOUTS: dict[str, Any] = {"cifar10": CIFAR10, "cifar100": CIFAR100}
_LABELS = {"cifar10": "labels", "cifar100": "fine_labels"}
_SIDE = 32
_HARMLESS = {
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.numeric._frombuffer",
    "_codecs.encode",
}


def read(root: Path, name: str, *, train: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a split's images, uint8 (N, 3, 32, 32), and labels, int64 (N,)."""
    layout = LAYOUTS[name]
    images: list[torch.Tensor] = []
    labels: list[int] = []
    for file, _ in layout.train_list if train else layout.test_list:
        path = root / layout.base_folder / file
        content = _unpickle(path)
        try:
            pixels = np.asarray(content["data"])
            images.append(torch.from_numpy(pixels.reshape(-1, 3, _SIDE, _SIDE)))
            labels.extend(int(label) for label in content[_LABELS[name]])
            is_whole = pixels.dtype == np.uint8 and sum(map(len, images)) == len(labels)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is not a file of {name}: {error}") from error
        if not is_whole:
            raise UserError(f"{path} is not a file of {name}: {len(labels)} labels, {pixels.shape}")
    known = len(classes(root, name))
    if not all(0 <= label < known for label in labels):
        raise UserError(f"{path} has the label {max(labels)}; allowed: 0 to {known - 1}")
    return torch.cat(images), torch.tensor(labels)


def classes(root: Path, name: str) -> tuple[str, ...]:
    """Return the names of a set's classes."""
    layout = LAYOUTS[name]
    path, key = root / layout.base_folder / layout.meta["filename"], layout.meta["key"]
    content = _unpickle(path)
    if key not in content:
        raise UserError(f"{path} is not a file of {name}: it has no {key!r}")
    return tuple(str(label) for label in content[key])


def _unpickle(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = _Arrays(file, encoding="latin1").load()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}; write "
            f"{caller.fields({'data.root': 'FOLDER'})}"
        ) from error
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(f"{path} is damaged or not a CIFAR file: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a CIFAR file: it holds a {type(content).__name__}")
    return content


class _Arrays(pickle.Unpickler):
    """Creates only arrays, text and numbers; refuses any other class before it is called."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _HARMLESS:
            raise pickle.UnpicklingError(f"it references {module}.{name}, which is not allowed")
        return super().find_class(module, name)
