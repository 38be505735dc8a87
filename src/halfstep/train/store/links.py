"""Refuses symbolic links in a run directory, through which a run would write to other directories.

    runs/digits/fp16-seed0/checkpoints -> /home/me/important

The run directory itself or a parent of it may be a link, because the user chose that path. Links
inside the directory may come from another person, together with the directory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from halfstep import caller
from halfstep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def refuse(directory: Path, written: Iterable[Path]) -> None:
    """Refuse symbolic links at or below the paths in `written` that lead out of `directory`."""
    home = os.path.realpath(directory)
    for path in written:
        for link in _links(path):
            target = os.path.realpath(link)
            if os.path.commonpath([home, target]) != home:
                raise UserError(
                    f"{str(link)!r} is a symbolic link to {target!r}, outside of "
                    f"{str(directory)!r}; links out of the directory are not followed: remove it, "
                    f"or write {caller.name('out')} with another directory, which may itself be a "
                    "link"
                )


def _links(path: Path) -> Iterator[Path]:
    """Yield the symbolic links at and below a path, without following them."""
    if path.is_symlink():
        yield path
        return
    for folder, directories, files in os.walk(path):
        yield from (
            entry for name in (*directories, *files) if (entry := Path(folder, name)).is_symlink()
        )
