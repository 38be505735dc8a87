"""Reads samples out of tar shards, from front to back, several shards side by side.

What is returned depends only on what is asked for. What is kept between two requests, open streams
and the samples that are shuffled, saves reading a shard again from its beginning.
"""

from __future__ import annotations

import tarfile
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import torch
from webdataset.gopen import gopen
from webdataset.tariterators import group_by_keys

from halfstep.errors import UserError
from halfstep.train.data.shards import shards
from halfstep.train.data.sources.seeding import generator

if TYPE_CHECKING:
    from collections.abc import Iterator

Raw = dict[str, Any]
"""A sample as WebDataset has it: "__key__", and the bytes of each file by its extension."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a sample is.

    Attributes:
        url: The shard.
        shard: Its index among the split's.
        count: Samples of it that are read.
        rank: Which of them is wanted, in the order of reading.
    """

    url: str
    shard: int
    count: int
    rank: int


@dataclass(frozen=True, slots=True)
class PartJob:
    """What one worker loads of one batch.

    Attributes:
        epoch: Counted from 1; 0 in validation.
        places: Where the samples are.
        slots: Which image of the batch each of them is.
    """

    epoch: int
    places: tuple[Position, ...]
    slots: tuple[int, ...]


class ShardReader:
    """Returns samples of shards that are read at about the same pace.

    Args:
        window: Samples that are kept and returned in random order; 1 keeps the shard's order.
        open_shards: Shards that are kept open; the one longest not asked for is closed for another.
        seed: Decides the order within the windows, with the epoch and the shard.
    """

    def __init__(self, window: int, open_shards: int, seed: int) -> None:
        self._window = window
        self._most = open_shards
        self._seed = seed
        self._open: OrderedDict[tuple[int, int], _Stream] = OrderedDict()

    def get(self, epoch: int, place: Position) -> tuple[int, Raw]:
        """Return a sample and its number within the shard.

        Raises:
            UserError: If the shard cannot be read, or ends before it.
        """
        window, rank = divmod(place.rank, self._window)
        stream = self._stream(epoch, place, window)
        first = window * self._window
        size = min(self._window, place.count - first)
        stream.advance(window, first, size)
        if size > 1:
            chance = generator(self._seed, epoch, place.shard, window, 3)
            rank = int(torch.randperm(size, generator=chance)[rank])
        sample = stream.held[rank]
        if place.rank == place.count - 1:
            del self._open[epoch, place.shard]
            stream.close()
        return first + rank, sample

    def _stream(self, epoch: int, place: Position, window: int) -> _Stream:
        key = (epoch, place.shard)
        stream = self._open.pop(key, None)
        if stream is not None and stream.window > window:  # asked for what has gone by
            stream.close()
            stream = None
        if stream is None:
            stream = _Stream(place.url)
        self._open[key] = stream
        while len(self._open) > self._most:
            self._open.popitem(last=False)[1].close()
        return stream


def _files(url: str, stream: IO[bytes]) -> Iterator[Raw]:
    """Yield the files of a shard as WebDataset groups them.

    Raises:
        tarfile.TarError: If it is damaged, or would fill the memory.
    """
    with tarfile.open(fileobj=stream, mode="r|*", tarinfo=shards.Member) as tar:
        for member in tar:
            if member.isreg() and not shards.META.match(member.name):
                content = tar.extractfile(member)
                assert content is not None  # it is a regular file
                yield {"fname": member.name, "data": content.read(), "__url__": url}
            tar.members = []  # type: ignore[attr-defined]  # or it remembers every header


class _Stream:
    """One shard, being read.

    Attributes:
        window: Number of the window that is held; -1 before the first.
        held: Its samples, in the order of the shard.
    """

    def __init__(self, url: str) -> None:
        self.window = -1
        self.held: list[Raw] = []
        self._url = url
        self._read = 0
        try:
            self._file = gopen(url)
        except (OSError, ValueError) as error:
            raise UserError(f"{url} cannot be opened: {error}") from error
        self._samples: Iterator[Raw] = iter(group_by_keys(_files(url, self._file)))

    def advance(self, window: int, first: int, size: int) -> None:
        """Hold a window: `size` samples from number `first` on."""
        if window == self.window:
            return
        self.held = []
        while self._read < first:
            self._next()
        self.held = [self._next() for _ in range(size)]
        self.window = window

    def _next(self) -> Raw:
        try:
            sample = next(self._samples)
        except StopIteration:
            raise UserError(
                f"{self._url} ends after {self._read} samples, and its index has more; "
                "correct the index, or fetch the shard again"
            ) from None
        except Exception as error:
            reason = " ".join(str(error).split())[:160]
            raise UserError(
                f"{self._url} is damaged after sample {self._read}: {reason}; fetch it again"
            ) from error
        self._read += 1
        return sample

    def close(self) -> None:
        """Close the file, or end the process that fetches it."""
        with suppress(OSError):  # a transfer that is cut short says so
            self._file.close()
