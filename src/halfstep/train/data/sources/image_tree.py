"""Finds the image files below a folder, and counts the files that it leaves out.

Only names are compared: no file is opened, and the file system is asked for nothing but listings.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfstep.train.data.sources.faults import Notice, listing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Endings of the image files that are read, in lower case: those of torchvision's ImageFolder."""
_HIDDEN = frozenset({"__macosx", "thumbs.db", "desktop.ini", "@eadir"})
"""Names that file managers, archivers and file servers write, in lower case."""
_TEXTS = frozenset(
    {".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".html", ".log"}
)
"""Endings of texts, such as captions, which are expected beside images and are not images."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Numbers of files that are not read.

    Attributes:
        hidden: Hidden files and folders by name; the contents of a hidden folder do not count.
        formats: Files of other formats by ending; texts do not count.
    """

    hidden: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)

    @property
    def unread(self) -> str:
        """The formats with their numbers; "" if there are none."""
        if not self.formats:
            return ""
        count = self.formats.total()
        noun = "file of a format that is" if count == 1 else "files of formats that are"
        return f"{count:,} {noun} not read: {_by_number(self.formats)}; convert to PNG or JPEG"

    def notices(self, folder: Path) -> tuple[Notice, ...]:
        """Return the notices of the files in `folder` that are not read, at most one of a kind."""
        notices = []
        if self.formats:
            notices.append(Notice("format", f"{folder}: {self.unread}"))
        if self.hidden:
            count = self.hidden.total()
            noun = "hidden file or folder" if count == 1 else "hidden files and folders"
            text = f"{count:,} {noun} ignored: {_by_number(self.hidden)}"
            notices.append(Notice("hidden", f"{folder}: {text}"))
        return tuple(notices)


def by_class(folder: Path, left_out: LeftOut) -> dict[str, list[str]]:
    """Return the image files in each subfolder, in the order of torchvision's ImageFolder.

    The paths start from `folder`. Files that are not read are added to `left_out`.
    """
    with os.scandir(folder) as entries:
        is_folder = {entry.name: entry.is_dir() for entry in entries}
    prefix = os.path.join(folder, "")  # noqa: PTH118  (Path drops the separator at the end)
    return {
        name: [path[len(prefix) :] for path in below(prefix + name, left_out)]
        for name in sorted(_visible(is_folder, left_out))
        if is_folder[name]
    }


def below(
    folder: Path | str,
    left_out: LeftOut,
    suffixes: tuple[str, ...] = SUFFIXES,
    *,
    follow_links: bool = True,
) -> list[str]:
    """Return the image files in a folder and its subfolders, ordered by folder and then by name.

    Args:
        folder: The folder, with which the paths start.
        left_out: Receives the files that are not read.
        suffixes: Endings of the files to return, in lower case.
        follow_links: Whether symbolic links to folders are followed.
    """
    classes: list[tuple[str, list[str]]] = []
    for parent, folders, files in os.walk(folder, followlinks=follow_links):
        folders[:] = _visible(folders, left_out)
        images = []
        for name in _visible(files, left_out):
            if name.lower().endswith(suffixes):
                images.append(name)
            elif (ending := os.path.splitext(name)[1].lower()) not in _TEXTS:  # noqa: PTH122
                left_out.formats[ending or "no ending"] += 1
        classes.append((parent, sorted(images)))
    return [os.path.join(parent, name) for parent, names in sorted(classes) for name in names]  # noqa: PTH118


def is_hidden(name: str) -> bool:
    """Tell whether a file or folder is hidden, and so not read."""
    return name.startswith(".") or name.lower() in _HIDDEN


def _visible(names: Iterable[str], left_out: LeftOut) -> list[str]:
    """Return the names that are not hidden, and count the others."""
    visible = []
    for name in names:
        if is_hidden(name):
            # macOS stores the attributes of each file "x" in a file "._x".
            left_out.hidden["._*" if name.startswith("._") else name] += 1
        else:
            visible.append(name)
    return visible


def _by_number(counts: Counter[str]) -> str:
    return listing(f"{name} {count:,}" for name, count in sorted(counts.items()))
