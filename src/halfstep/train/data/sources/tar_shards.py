"""Reads tar shards in WebDataset format: `0001.jpg` and `0001.cls` form one sample.

The headers of a shard are read once, to find the position of each image. From then on an image is
a range of bytes that any worker can read, so that order, workers, limits, checks and resuming are
the same as for every other source.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tarfile
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

import numpy as np

from halfstep.errors import UserError, closest, reason
from halfstep.feed.decode import read_image
from halfstep.feed.pixels import MOST_BYTES, CorruptImage
from halfstep.files import write_atomically
from halfstep.train.data.sources import shard_files
from halfstep.train.data.sources.pictures import Texts, folder, locate
from halfstep.train.data.sources.source import Source, limited

if TYPE_CHECKING:
    import torch

    from halfstep.feed import ImageCache
    from halfstep.train.config.data import WebdatasetConfig

_IMAGES = ("jpg", "jpeg", "png", "webp")
_LABEL = "cls"
_MOST_LABEL = 1000
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)")
_META = re.compile(r"__[^/]*__($|/)")
_OPEN_SHARDS = 64
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)
_ARRAYS = ("spans", "names", "name_ends", "labels", "label_ends")


@dataclass(frozen=True, slots=True)
class Shard:
    """The index of one shard.

    Attributes:
        spans: int64 (N, 2): offset and size in bytes of each sample's image; size 0 without one.
        names: Names of the samples.
        labels: Labels of the samples, as written in the shard; "" without one.
    """

    spans: np.ndarray
    names: Texts
    labels: Texts


@dataclass(frozen=True, slots=True)
class TarSplit:
    """The samples of a split.

    Attributes:
        files: Paths of the shards.
        shard: Index into `files` of each sample's shard, int32 (N,).
        spans: int64 (N, 2); see `Shard`.
        labels: Class indices, int64 (N,); -1 for samples without a label.
        names: Names of the samples.
        cache: The cache of decoded images; None without one.
    """

    files: tuple[str, ...]
    shard: np.ndarray
    spans: np.ndarray
    labels: np.ndarray
    names: Texts
    cache: ImageCache | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> tuple[torch.Tensor, int]:
        start, size = self.spans[index].tolist()
        label = int(self.labels[index])
        if not size or label < 0:
            raise CorruptImage(
                f"{self.where(index)} has no {_LABEL if size else 'image'}; allowed: "
                f"{' or '.join(_IMAGES)}, and {_LABEL}"
            )
        shard = Path(self.files[self.shard[index]])
        file = _opened(shard).fileno()

        def read(_: Path) -> torch.Tensor:
            return read_image(os.pread(file, size, start), name=self.where(index))

        if self.cache is None:
            return read(shard), label
        return self.cache.read(shard, read, start, status=os.fstat(file)), label

    def where(self, index: int) -> str:
        return f"{self.files[self.shard[index]]}, sample {self.names[index]}"


@functools.lru_cache(_OPEN_SHARDS)
def _opened(file: Path) -> IO[bytes]:
    # Only read with os.pread, which uses no file position, so that forked processes can share it.
    return file.open("rb", buffering=0)


def load(config: WebdatasetConfig) -> Source:
    """Return the samples of training and validation.

    Raises:
        UserError: If there are no shards, if a shard is not a tar file, or if a label is not a
            class.
    """
    root, cache = folder(config.root), Path(config.cache).expanduser()
    classes = _classes(config)
    splits = []
    for key, split in (("train", config.train), ("val", config.val)):
        files = shard_files.find(split.urls, root, cache, f"data.{key}.urls")
        samples = _split(files, [_indexed(file, cache) for file in files], classes)
        if not len(samples):
            raise UserError(f"data.{key}.urls is {split.urls!r}, whose shards hold no sample")
        splits.append(limited(samples, split))
    return Source(splits[0], splits[1], classes)


def _split(files: list[Path], shards: list[Shard], classes: tuple[str, ...]) -> TarSplit:
    numbers = {name: number for number, name in enumerate(classes)}
    labels = [
        _number(shard.labels[index], numbers, f"{file}, sample {shard.names[index]}")
        for file, shard in zip(files, shards, strict=True)
        for index in range(len(shard.names))
    ]
    names = [shard.names for shard in shards]
    ends, before = [], 0
    for texts in names:
        ends.append(texts.ends + before)
        before += len(texts.content)
    return TarSplit(
        tuple(map(str, files)),
        np.repeat(np.arange(len(files), dtype=np.int32), list(map(len, names))),
        np.concatenate([shard.spans for shard in shards]),
        np.array(labels, dtype=np.int64),
        Texts(np.concatenate([texts.content for texts in names]), np.concatenate(ends)),
    )


def _number(label: str, numbers: dict[str, int], name: str) -> int:
    if label in numbers:
        return numbers[label]
    if not label:
        return -1
    if label.isascii() and label.isdigit() and int(label) < len(numbers):
        return int(label)
    near = "" if label.lstrip("-").isdigit() else closest(label, numbers)
    raise UserError(
        f"{name} has the class {label[:40]!r}; allowed: 0 to {len(numbers) - 1}, or a name of the "
        f"file data.names{near}"
    )


def _indexed(file: Path, cache: Path) -> Shard:
    """Return the index of a shard, from the cache if a former run has written it there."""
    status = file.stat()
    identity = f"1 {file.resolve()} {status.st_size} {status.st_mtime_ns}"
    known = cache / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.npz"
    with suppress(*_UNREADABLE), np.load(known) as arrays:
        spans, names, name_ends, labels, label_ends = (arrays[name] for name in _ARRAYS)
        return Shard(spans, Texts(names, name_ends), Texts(labels, label_ends))
    shard = _walked(file)
    with suppress(OSError):  # if the disk is full, the next run reads the headers again
        names, labels = shard.names, shard.labels
        kept = partial(np.savez, spans=shard.spans, names=names.content, name_ends=names.ends)
        write_atomically(known, partial(kept, labels=labels.content, label_ends=labels.ends))
    return shard


def _walked(file: Path) -> Shard:
    names: list[str] = []
    spans: list[tuple[int, int]] = []
    labels: list[str] = []
    try:
        with tarfile.open(file, "r:", tarinfo=_Member) as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # or it remembers every header
                match = _NAME.fullmatch(member.name)
                if match is None or not member.isreg() or _META.match(member.name):
                    continue
                name, kind = match[1], match[2].lower()
                if not names or names[-1] != name:
                    names.append(name)
                    spans.append((0, 0))
                    labels.append("")
                if kind in _IMAGES and not spans[-1][1]:
                    spans[-1] = member.offset_data, member.size
                elif kind == _LABEL:
                    content = tar.extractfile(member)
                    assert content is not None  # it is a regular file
                    labels[-1] = content.read(_MOST_LABEL).decode(errors="replace").strip()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(
            f"{file} cannot be read as a tar file that is not compressed: {reason(error)}; fetch "
            "or make it again"
        ) from error
    return Shard(np.array(spans, dtype=np.int64).reshape(-1, 2), *map(Texts.pack, (names, labels)))


class _Member(tarfile.TarInfo):
    """A file in a shard; refused before it is read if it would take too much memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Return the member that a tar header describes.

        Raises:
            tarfile.ReadError: If the member is too large, or is a sparse file, which may be larger
                in memory than in the shard.
        """
        member = super().frombuf(buf, encoding, errors)
        if member.size > MOST_BYTES or member.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(
                f"{member.name!r} declares {member.size:,} bytes; allowed: up to {MOST_BYTES:,}, "
                "all of them in the file"
            )
        return member


def _classes(config: WebdatasetConfig) -> tuple[str, ...]:
    """Return the names of the classes, or their numbers if data.names is null."""
    if config.names is None:
        return tuple(str(number) for number in range(config.classes))
    file = locate(config.names, Path(config.root), "data.names")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"data.names is {config.names!r}, which cannot be read: {error}") from error
    names = tuple(line.strip() for line in lines if line.strip())
    if len(set(names)) != config.classes or len(names) != config.classes:
        raise UserError(
            f"data.names is {config.names!r}, which has {len(set(names))} different names on "
            f"{len(names)} lines, but data.classes is {config.classes}; write one line for each"
        )
    for number, name in enumerate(names):
        if name.isascii() and name.isdigit() and int(name) < len(names) and int(name) != number:
            raise UserError(
                f"data.names is {config.names!r}, which calls class {number} {name!r}, the number "
                "of another class; write names that are no numbers, or leave data.names out"
            )
    return names
