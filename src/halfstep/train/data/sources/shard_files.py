"""Finds tar shards: expands braces and globs, and downloads URLs to a local cache.

fsspec downloads the whole shard of a URL once; from then on the shard is a local file. fsspec's own
cache is not used, because it takes a file that a killed process has written only in part for a
complete one, and lets several processes write the same file at once.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import re
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from halfstep import caller
from halfstep.errors import UserError, in_a_line
from halfstep.files import write_atomically

if TYPE_CHECKING:
    from typing import BinaryIO

_URL = re.compile(r"[a-z0-9]+://")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_MOST_SHARDS = 1_000_000
_CHUNK = 2**22


def find(given: str, root: Path, cache: Path, key: str) -> list[Path]:
    """Return the local files of a split's shards.

    Args:
        given: Paths, globs and URLs, separated by "::", with ranges or lists in braces.
        root: Folder that is searched if the working directory has no matching file.
        cache: Folder for downloaded shards.
        key: Name of `given` in errors, such as "data.train.urls".

    Raises:
        UserError: If there are no shards, or if a shard cannot be downloaded.
    """
    count = sum(
        prod(map(len, map(_choices, _BRACES.findall(shard)))) for shard in given.split("::")
    )
    if count > _MOST_SHARDS:
        raise UserError(
            f"{key} is {given[:80]!r}, which are {count:,} shards; allowed: up to {_MOST_SHARDS:,}"
        )
    files: list[Path] = []
    for pattern in filter(None, given.split("::")):
        for name in _expanded(pattern):
            files += [_fetched(name, cache, key)] if _URL.match(name) else _on_disk(name, root, key)
    if not files:
        raise UserError(f"{key} is {given!r}; allowed: paths or URLs of tar files")
    return files


def _on_disk(name: str, root: Path, key: str) -> list[Path]:
    here = glob.glob(name)  # noqa: PTH207  (Path.glob takes no absolute patterns)
    there = glob.glob(name, root_dir=root)  # noqa: PTH207
    paths = [Path(shard) for shard in sorted(here)] or [root / shard for shard in sorted(there)]
    if not paths:
        raise UserError(
            f"{key} names {name!r}, which no file matches, neither in the working directory nor in "
            f"{str(root)!r}; write {caller.fields({key: ...})}"
        )
    return paths


def _choices(inside: str) -> range | list[str]:
    ends = _RANGE.fullmatch(inside)
    return range(int(ends[1]), int(ends[2]) + 1) if ends else inside.split(",")


def _expanded(pattern: str) -> list[str]:
    """Return all names that result from the ranges ("{000..127}") and lists ("{a,b}") in braces."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    digits = len(match[1].partition("..")[0])  # as in a shell, {000..127} keeps its zeros
    texts = [
        f"{choice:0{digits}}" if isinstance(choice, int) else choice
        for choice in _choices(match[1])
    ]
    rest = _expanded(pattern[match.end() :])
    return [pattern[: match.start()] + text + tail for text in texts for tail in rest]


def _fetched(url: str, cache: Path, key: str) -> Path:
    """Return the local copy of a URL; the first process downloads it, and the others wait."""
    file = cache / f"{hashlib.sha256(url.encode()).hexdigest()[:24]}.tar"
    if file.is_file():
        return file
    # Imported here because it is slow, and most runs have their data on disk.
    from fsspec.core import url_to_fs

    def copy(target: BinaryIO) -> None:
        with system.open(path, "rb") as source:
            while chunk := source.read(_CHUNK):
                target.write(chunk)

    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.is_file():
                system, path = url_to_fs(url)
                write_atomically(file, copy)
    except ImportError as error:
        raise UserError(
            f"{key} names {url!r}: {error}; pip install 'halfstep[remote]' for http"
        ) from error
    except Exception as error:  # each file system raises the exceptions of its own client
        raise UserError(
            f"{key} names {url!r}, which cannot be fetched into {str(cache)!r}: {in_a_line(error)}"
        ) from error
    return file
