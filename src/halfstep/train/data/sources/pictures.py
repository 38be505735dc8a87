"""Splits with one file for each image, and the search for files that a config names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from halfstep import caller
from halfstep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from halfstep.feed import ImageCache


@dataclass(frozen=True, slots=True)
class Texts:
    """Many short texts in one block of memory.

    A list of a million paths would gradually be copied into every forked worker, because Python
    writes the reference count of an object next to the object.

    Attributes:
        content: All texts in UTF-8, one after the other, as uint8.
        ends: Offset in `content` at which each text ends, int64.
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
        paths: Paths of the images.
        labels: Class indices, int64 (N,).
        listed: Name in messages of the CSV file that lists the images; None without one.
        rows: Row of each image in the CSV file, int64 (N,); None without one.
        cache: The cache of decoded images; None without one.
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
        from halfstep.feed.decode import read_image

        path, read = self.root / self.paths[index], partial(read_image, name=self.where(index))
        image = read(path) if self.cache is None else self.cache.read(path, read)
        return image, int(self.labels[index])

    def where(self, index: int) -> str:
        """Return the name of an image in messages: "train.csv, row 7 (data/images/3.jpg)"."""
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
    """Return the file that config field `key` names: in the working directory, else in `root`."""
    for path in (Path(given), root / given):
        if is_there(path):
            return path
    places = " or ".join(dict.fromkeys((str(Path(given)), str(root / given))))
    raise UserError(
        f"{key} is {given!r}, but there is no file {places}; write {caller.fields({key: ...})}"
    )


def folder(given: str) -> Path:
    """Return the folder that data.root names."""
    root = Path(given).expanduser()
    if root.is_dir():
        return root
    problem = "is a file" if root.exists() else "does not exist"
    raise UserError(
        f"data.root is {given!r}, which {problem}; write {caller.fields({'data.root': 'FOLDER'})}"
    )
