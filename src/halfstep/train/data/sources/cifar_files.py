"""CIFAR's files without their checksums: copies whose pixels were changed, such as by JPEG.

The files are pickles. Unlike torchvision, which relies on the checksum, this reader lets a pickle
make nothing but arrays, text and numbers, so that a foreign copy cannot run code.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from halfstep.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

_SIDE = 32
_HARMLESS = {
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.numeric._frombuffer",
    "_codecs.encode",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a set has what.

    Attributes:
        folder: Under the root.
        train: Files of the training split.
        test: Files of the test split.
        labels: Key of the labels in them.
        names: File and key of the names of the classes.
    """

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: str
    names: tuple[str, str]


LAYOUTS = {
    "cifar10": Layout(
        "cifar-10-batches-py",
        tuple(f"data_batch_{number}" for number in range(1, 6)),
        ("test_batch",),
        "labels",
        ("batches.meta", "label_names"),
    ),
    "cifar100": Layout(
        "cifar-100-python", ("train",), ("test",), "fine_labels", ("meta", "fine_label_names")
    ),
}


def read(root: Path, name: str, *, train: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a split's images, uint8 (N, 3, 32, 32), and labels, int64 (N,).

    Args:
        root: Folder that holds the set's own.
        name: "cifar10" or "cifar100".
        train: Which split.

    Raises:
        UserError: If a file is missing or holds something else.
    """
    layout = LAYOUTS[name]
    images: list[torch.Tensor] = []
    labels: list[int] = []
    for file in layout.train if train else layout.test:
        path = root / layout.folder / file
        content = _unpickle(path)
        try:
            pixels = np.asarray(content["data"])
            images.append(torch.from_numpy(pixels.reshape(-1, 3, _SIDE, _SIDE)))
            labels.extend(int(label) for label in content[layout.labels])
            is_whole = pixels.dtype == np.uint8 and sum(map(len, images)) == len(labels)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is no file of {name}: {error}") from error
        if not is_whole:
            raise UserError(f"{path} is no file of {name}: {len(labels)} labels, {pixels.shape}")
    known = len(classes(root, name))
    if not all(0 <= label < known for label in labels):
        raise UserError(f"{path} has the label {max(labels)}; allowed: 0 to {known - 1}")
    return torch.cat(images), torch.tensor(labels)


def classes(root: Path, name: str) -> tuple[str, ...]:
    """Return the names of a set's classes."""
    layout = LAYOUTS[name]
    file, key = layout.names
    path = root / layout.folder / file
    content = _unpickle(path)
    if key not in content:
        raise UserError(f"{path} is no file of {name}: it has no {key!r}")
    return tuple(str(each) for each in content[key])


def _unpickle(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = _Arrays(file, encoding="latin1").load()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}; write --options data.root=FOLDER"
        ) from error
    except Exception as error:  # whatever a damaged pickle raises
        raise UserError(f"{path} is damaged or no file of CIFAR: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is no file of CIFAR: it holds a {type(content).__name__}")
    return content


class _Arrays(pickle.Unpickler):
    """Makes arrays, text and numbers, and refuses everything else before it runs."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle asks for, if that is harmless."""
        if f"{module}.{name}" not in _HARMLESS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused")
        return super().find_class(module, name)
