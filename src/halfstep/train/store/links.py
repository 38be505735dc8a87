"""Symbolic links in a directory of somebody else's, through which a run would write elsewhere.

    runs/digits/fp16-seed0/checkpoints -> /home/me/important

The directory of a run may be a link itself, or lie behind one: whoever writes `--out` chose that.
What lies in it came with it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from halfstep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def refuse(directory: Path, written: Iterable[Path]) -> None:
    """Refuse links that lead out of a directory, in what is to be written there or below."""
    home = os.path.realpath(directory)
    for each in written:
        for link in _links(each):
            target = os.path.realpath(link)
            if os.path.commonpath([home, target]) != home:
                raise UserError(
                    f"{str(link)!r} is a symbolic link to {target!r}, outside of "
                    f"{str(directory)!r}; links out of the directory are not followed: remove it, "
                    "or write --out with another directory, which may itself be a link"
                )


def _links(path: Path) -> Iterator[Path]:
    """Yield the links at and below a path; none is followed."""
    if path.is_symlink():
        yield path
        return
    for folder, directories, files in os.walk(path):
        yield from (
            found for name in (*directories, *files) if (found := Path(folder, name)).is_symlink()
        )
