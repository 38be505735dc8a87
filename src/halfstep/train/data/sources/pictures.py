"""Images in files of their own, and where such files are looked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from halfstep.errors import UserError
from halfstep.feed.decode import read_image

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from halfstep.feed import ImageCache


@dataclass(frozen=True, slots=True)
class Texts:
    """Very many short texts in one block of memory.

    A list of a million paths would be copied into every worker bit by bit, as Python counts
    references where the objects lie.

    Attributes:
        content: All texts, in UTF-8, one after the other.
        ends: Where each of them ends.
    """

    content: np.ndarray
    ends: np.ndarray

    @classmethod
    def pack(cls, texts: Sequence[str]) -> Self:
        """Return `texts` as one block."""
        encoded = [text.encode(errors="surrogateescape") for text in texts]
        ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:
        start = self.ends[index - 1] if index else 0
        encoded = self.content[start : self.ends[index]].tobytes()
        return encoded.decode(errors="surrogateescape")


@dataclass(frozen=True, slots=True)
class Pictures:
    """Image files and their labels.

    Attributes:
        root: Folder that the paths start from.
        paths: Of the images.
        labels: int64 (N,).
        listed: The file that lists them, if there is one, as messages call it.
        rows: The row of each image in it.
        cache: Where decoded images are kept, if anywhere.
    """

    root: Path
    paths: Texts
    labels: np.ndarray
    listed: str | None = None
    rows: np.ndarray | None = None
    cache: ImageCache | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> tuple[torch.Tensor, int]:
        path, read = self.root / self.paths[index], partial(read_image, name=self.where(index))
        image = read(path) if self.cache is None else self.cache.read(path, read)
        return image, int(self.labels[index])

    def where(self, index: int) -> str:
        """Return what messages call an image: "train.csv, row 7 (data/images/3.jpg)"."""
        path = str(self.root / self.paths[index])
        if self.rows is None:
            return path
        return f"{self.listed}, row {self.rows[index]} ({path})"


def is_there(path: Path) -> bool:
    """Tell whether a file exists; False for a path that no file system accepts."""
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def locate(given: str, root: Path, key: str) -> Path:
    """Return the file that a config names: in the working directory, or else in `root`."""
    for path in (Path(given), root / given):
        if is_there(path):
            return path
    places = " or ".join(dict.fromkeys((str(Path(given)), str(root / given))))
    raise UserError(f"{key} is {given!r}, but there is no file {places}; write --options {key}=...")


def folder(given: str) -> Path:
    """Return the folder that data.root names."""
    root = Path(given).expanduser()
    if root.is_dir():
        return root
    problem = "is a file" if root.exists() else "does not exist"
    raise UserError(f"data.root is {given!r}, which {problem}; write --options data.root=FOLDER")
