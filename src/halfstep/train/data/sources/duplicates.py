"""Finds identical images: images with equal pixels, whatever the names and contents of the files.

A model cannot distinguish copies that were saved again without loss, or with other metadata.
`find` runs before every run. For up to `MOST_DECODED` images it compares pixels, which takes
seconds. For more images it compares files: it opens only files of equal size, and reads only those
completely that begin with the same bytes. The images that it finds in this way are identical;
`halfstep data check` finds the others.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from halfstep.errors import UserError
from halfstep.feed import pixels

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    import numpy as np

    from halfstep.train.data.sources.csv_rows import CsvRow

MOST = 200_000
"""Number of rows up to which `find` compares contents; above it, only paths are compared."""
MOST_DECODED = 2_000
"""Number of images up to which `find` compares pixels; above it, files are compared."""
_BEGINNING = 4096
_T = TypeVar("_T")
Read = Callable[[Path], "np.ndarray"]
"""Reads an image file as an array (height, width, channels)."""


def digest(image: np.ndarray) -> bytes:
    """Return a hash of the size and pixels of an image (height, width, channels) of any dtype."""
    hashed = hashlib.blake2b(f"{image.dtype}{image.shape}".encode(), digest_size=16)
    hashed.update(image.data)
    return hashed.digest()


def groups(paths: Sequence[Path], read: Read = pixels.read) -> list[list[int]]:
    """Return the indices of the files of each distinct image, ordered by the first index.

    Each file is read once, by `read`. Files that are not images are identical if their bytes are.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        of_image: dict[bytes, list[int]] = defaultdict(list)
        for index, key in enumerate(pool.map(partial(_of_file, read), paths)):
            of_image[key].append(index)
    return list(of_image.values())


def _of_file(read: Read, path: Path) -> bytes:
    try:
        return digest(read(path))
    except UserError:
        return _content(str(path))


@dataclass(slots=True)
class Duplicates:
    """A line for each image that is listed more than once, in at most one of the lists.

    Attributes:
        contradicting: Images with different labels.
        shared: Images with one label that are in both splits.
        repeated: Images with one label that are listed in one split, twice with the same path.
    """

    contradicting: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Listed:
    file: str
    split: int
    row: CsvRow
    path: str


def find(
    listed: Sequence[tuple[str, Sequence[CsvRow]]], root: Path, read: Read = pixels.read
) -> Duplicates:
    """Find images under `root` that several rows list.

    `listed` has the CSV file and the rows of each split; `read` reads an image.
    """
    everything = [
        _Listed(file, split, row, os.path.normpath(root / row.image))
        for split, (file, rows) in enumerate(listed)
        for row in rows
    ]
    copies = Duplicates()
    for group in _groups(everything, read):
        labels = {entry.row.label for entry in group}
        paths = {entry.path for entry in group}
        if len(labels) > 1:
            copies.contradicting.append(_line(group))
        elif len({entry.split for entry in group}) > 1:
            copies.shared.append(_line(group))
        elif len(paths) < len(group):
            copies.repeated.append(_line(group))
    return copies


def _groups(everything: Sequence[_Listed], read: Read) -> list[list[_Listed]]:
    """Return the rows of each image that several rows list, ordered by the first row."""
    by_path = _together(everything, lambda entry: entry.path)
    if len(everything) > MOST:
        return [group for group in by_path if len(group) > 1]
    if len(by_path) <= MOST_DECODED:
        of_same_pixels = groups([Path(rows[0].path) for rows in by_path], read)
        alike = [[by_path[index] for index in group] for group in of_same_pixels]
        alike = [group for group in alike if len(group) > 1 or len(group[0]) > 1]
    else:
        alike = [by_path]
        for key in (_size, _beginning, _content):
            alike = [part for group in alike for part in _alike(group, key)]
    merged = [[entry for rows in group for entry in rows] for group in alike]
    return sorted(merged, key=lambda group: (group[0].split, group[0].row.number))


def _alike(
    by_path: list[list[_Listed]], key: Callable[[str], Hashable]
) -> Iterator[list[list[_Listed]]]:
    """Split rows by the `key` of their paths, and drop images that only one row lists."""
    for part in _together(by_path, lambda rows: key(rows[0].path)):
        if len(part) > 1 or len(part[0]) > 1:
            yield part


def _together(items: Iterable[_T], key: Callable[[_T], Hashable]) -> list[list[_T]]:
    groups: dict[Hashable, list[_T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())


def _size(path: str) -> int:
    return Path(path).stat().st_size


def _beginning(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(_BEGINNING)


def _content(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def _line(group: Sequence[_Listed]) -> str:
    """Return a line such as "train.csv row 3 (a.jpg: 'oak'), row 9 (b.jpg: 'elm')"."""
    texts: list[str] = []
    file = ""
    for entry in group:
        prefix = "" if entry.file == file else f"{entry.file} "
        file = entry.file
        texts.append(f"{prefix}row {entry.row.number} ({entry.row.image}: {entry.row.label!r})")
    return ", ".join(texts)
