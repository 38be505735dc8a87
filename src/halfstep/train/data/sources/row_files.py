"""Finds the files that the rows of a CSV file name, also if a name has another spelling on disk."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from halfstep.train.data.sources import spelling
from halfstep.train.data.sources.faults import Notice, listing
from halfstep.train.data.sources.pictures import is_there

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.train.data.sources.csv_rows import CsvRow


@dataclass(frozen=True, slots=True)
class LocatedRows:
    """The rows of a split, with the names that the files of the images have on disk.

    Attributes:
        file: Name of the CSV file in messages.
        rows: All rows; `image` is the path on disk if the file exists.
        missing: The rows whose file does not exist.
        respelled: Row numbers with the path in the CSV file and the path on disk, if the two differ
            in case or Unicode form.
    """

    file: str
    rows: list[CsvRow]
    missing: list[CsvRow]
    respelled: list[tuple[int, str, str]]

    def notices(self) -> tuple[Notice, ...]:
        """Return a notice of the paths that have another spelling on disk."""
        if not self.respelled:
            return ()
        count = len(self.respelled)
        named = listing(
            "row {} ({}, on disk {})".format(number, *spelling.told_apart(*paths))
            for number, *paths in self.respelled
        )
        noun = "image has" if count == 1 else "images have"
        text = f"{count:,} {noun} another case or Unicode form on disk: {named}"
        return (Notice("spelling", f"{self.file}: {text}; write the names alike"),)


def locate(file: str, rows: Sequence[CsvRow], root: Path) -> LocatedRows:
    """Find the image files of `rows`, whose paths start from `root`.

    Folders are listed only for rows whose file does not exist under the name in the CSV file.
    """
    located = LocatedRows(file, [], [], [])
    spellings = Spellings(root)
    for row in rows:
        if is_there(root / row.image):
            located.rows.append(row)
            continue
        path = spellings.on_disk(row.image)
        if path is None:
            located.missing.append(row)
            located.rows.append(row)
        else:
            located.respelled.append((row.number, row.image, path))
            located.rows.append(replace(row, image=path))
    return located


class Spellings:
    """Finds files below a folder by names in another spelling; lists each folder only once.

    Args:
        root: The folder that all paths start from.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: dict[Path, dict[str, list[str]]] = {}

    def on_disk(self, image: str) -> str | None:
        """Return the path on disk of the only file that `image` may name; None without one."""
        path = Path()
        for part in Path(image).parts:
            names = self._names(self._root / path).get(spelling.key(part), [])
            if part in names or part in {os.pardir, os.sep}:
                path /= part
            elif len(names) == 1:
                path /= names[0]
            else:
                return None
        return path.as_posix() if is_there(self._root / path) else None

    def _names(self, folder: Path) -> dict[str, list[str]]:
        """Return the names in a folder by their `spelling.key`; none if it cannot be listed."""
        if folder not in self._folders:
            names: dict[str, list[str]] = {}
            with suppress(OSError):
                for file in folder.iterdir():
                    names.setdefault(spelling.key(file.name), []).append(file.name)
            self._folders[folder] = names
        return self._folders[folder]
