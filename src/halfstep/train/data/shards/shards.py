"""Tar shards: where they are, how many samples each has, and in what order an epoch reads them.

An order that is known beforehand is what makes shards resumable and independent of the number of
workers. It needs the number of samples of each shard: shards on disk are counted by their headers,
those behind URLs come with an index.
"""

from __future__ import annotations

import glob
import lzma
import re
import tarfile
import zlib
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from webdataset.gopen import gopen
from webdataset.shardlists import expand_urls
from webdataset.tariterators import base_plus_ext

from halfstep.errors import UserError
from halfstep.files import parse_json
from halfstep.train.data.sources.pictures import locate
from halfstep.train.data.sources.seeding import generator

if TYPE_CHECKING:
    from halfstep.train.config.data import ShardsConfig

_URL = re.compile(r"[a-z0-9]+://|pipe:")
_COMMAND = re.compile(r"pipe:")
META = re.compile(r"__[^/]*__($|/)")
MOST_BYTES = 2**30
"""Of one file in a shard, which is read as a whole."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.-?\d+)?")
_MOST_SHARDS = 1_000_000
_MOST_SAMPLES = 100_000_000


class Member(tarfile.TarInfo):
    """A file in a shard, refused before it is read if it would fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Make one of a header.

        Raises:
            tarfile.ReadError: If it is too large, or stands for more bytes than there are.
        """
        member = super().frombuf(buf, encoding, errors)
        if member.size > MOST_BYTES or member.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(
                f"{member.name!r} promises {member.size:,} bytes; allowed: up to {MOST_BYTES:,}, "
                "all of them there"
            )
        return member


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of a split.

    Attributes:
        urls: Of each.
        counts: Samples that are used of each, its first ones.
    """

    urls: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def samples(self) -> int:
        """Samples of all of them."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Positions:
    """What an epoch reads, sample by sample.

    Attributes:
        shards: Index of the shard of each sample.
        ranks: Its number within what the epoch reads of that shard.
        lanes: Which of the shards that are read side by side it is; each lane is one worker's.
    """

    shards: np.ndarray
    ranks: np.ndarray
    lanes: np.ndarray


def find(config: ShardsConfig, root: Path, key: str) -> Shards:
    """Return the shards that a config names, with their numbers of samples.

    Args:
        config: Of the split.
        root: Second place to look for files in.
        key: "train" or "val", for errors.

    Raises:
        UserError: If there are none, if one is no tar file, or if it is not known how many samples
            one has.
    """
    urls = _expand(config.urls, root, f"data.{key}.urls")
    if config.index is None:
        remote = [url for url in urls if _URL.match(url)]
        if remote:
            raise UserError(
                f"data.{key}.urls names {remote[0]!r}, whose samples only an index can count; "
                f"write data.{key}.index=sizes.json, a file such as "
                f'{{"{PurePosixPath(remote[0]).name}": 1000}}'
            )
        counts = [_count(url) for url in urls]
    else:
        counts = _indexed(urls, config.index, root, f"data.{key}.index")
    if sum(counts) > _MOST_SAMPLES:
        raise UserError(
            f"data.{key}.index promises {sum(counts):,} samples; allowed: up to {_MOST_SAMPLES:,}"
        )
    if not sum(counts):
        raise UserError(f"data.{key}.urls is {config.urls!r}, whose shards hold no sample")
    return Shards(tuple(urls), _limited(counts, config.limit))


def positions(shards: Shards, interleave: int, *numbers: int) -> Positions:
    """Return the samples of an epoch in order.

    Args:
        shards: What there is.
        interleave: Shards that are read side by side, taking turns.
        numbers: Seed and epoch, which shuffle the shards; none leaves them in their order.
    """
    count = len(shards.urls)
    order = torch.arange(count)
    if numbers:
        order = torch.randperm(count, generator=generator(*numbers))
    return _side_by_side(order.numpy(), np.array(shards.counts), interleave)


def _side_by_side(order: np.ndarray, counts: np.ndarray, interleave: int) -> Positions:
    found = []
    for lane in range(min(interleave, len(order))):
        own = order[lane::interleave]
        total = int(counts[own].sum())
        of_shard = np.repeat(own, counts[own])
        starts = np.repeat(np.cumsum(counts[own]) - counts[own], counts[own])
        rounds = np.arange(total)
        found.append(np.stack([rounds, np.full(total, lane), of_shard, rounds - starts]))
    turns, lanes, of_shard, ranks = np.concatenate(found, axis=1)
    by_turn = np.lexsort((lanes, turns))
    return Positions(of_shard[by_turn], ranks[by_turn], lanes[by_turn])


def _expand(given: str, root: Path, key: str) -> list[str]:
    _refuse_many(given, key)
    try:
        patterns = expand_urls(given)
    except ValueError as error:
        raise UserError(f"{key} is {given!r}, which is no pattern: {error}") from error
    urls: list[str] = []
    for pattern in patterns:
        _refuse_command(pattern, key)
        if _URL.match(pattern):
            urls.append(pattern)
            continue
        here = glob.glob(pattern)  # noqa: PTH207  (Path.glob takes no absolute patterns)
        there = glob.glob(pattern, root_dir=root)  # noqa: PTH207
        found = sorted(here) or sorted(str(root / name) for name in there)
        if not found:
            raise UserError(
                f"{key} names {pattern!r}, which no file matches, neither in the working directory "
                f"nor in {str(root)!r}; write --options {key}=..."
            )
        urls.extend(found)
    if not urls:
        raise UserError(f"{key} is {given!r}; allowed: paths or URLs of tar files")
    return urls


def _refuse_many(given: str, key: str) -> None:
    """Refuse braces that stand for more names than memory holds."""
    count = 1
    for inside in _BRACES.findall(given):
        ends = _RANGE.fullmatch(inside)
        count *= abs(int(ends[1]) - int(ends[2])) + 1 if ends else max(inside.count(",") + 1, 1)
    if count > _MOST_SHARDS:
        raise UserError(
            f"{key} is {given[:80]!r}, which are {count:,} shards; allowed: up to {_MOST_SHARDS:,}"
        )


def _refuse_command(given: str, key: str) -> None:
    """Refuse what WebDataset would give to a shell."""
    if _COMMAND.match(given):
        raise UserError(
            f"{key} names {given!r}, a shell command, which a config does not run; fetch the "
            "shards first, or write a URL"
        )


def _count(url: str) -> int:
    """Count the samples of a shard on disk by its headers, as WebDataset groups files."""
    samples = 0
    last = None
    try:
        with tarfile.open(url, tarinfo=Member) as tar:
            for member in tar:
                key = None
                if member.isreg() and not META.match(member.name):
                    key, _ = base_plus_ext(member.name)
                samples += key is not None and key != last
                last = key or last
                tar.members = []  # type: ignore[attr-defined]  # or it remembers every header
    except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{url} cannot be read as a tar file: {reason}") from error
    return samples


def _indexed(urls: list[str], index: str, root: Path, key: str) -> list[int]:
    _refuse_command(index, key)
    try:
        if _URL.match(index):
            with gopen(index) as stream:
                known = parse_json(stream.read())
        else:
            known = parse_json(locate(index, root, key).read_bytes())
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{key} is {index!r}, which is no JSON file: {error}") from error
    wanted = '{"train-000.tar": 1000, "train-001.tar": 998}'
    if not isinstance(known, dict):
        raise UserError(f"{key} is {index!r}, which is no mapping; allowed: {wanted}")
    counts: list[int] = []
    for url in urls:
        count = known.get(PurePosixPath(url).name, known.get(url))
        if type(count) is not int or count < 0:
            raise UserError(
                f"{key} is {index!r}, which has {count!r} samples for {PurePosixPath(url).name!r}; "
                f"allowed: {wanted}"
            )
        counts.append(count)
    return counts


def _limited(counts: list[int], limit: int | None) -> tuple[int, ...]:
    """Share a limit among all shards by their sizes; the first samples of each are taken."""
    total = sum(counts)
    if limit is None or limit >= total:
        return tuple(counts)
    ends = [-(-end * limit // total) for end in accumulate(counts, initial=0)]
    return tuple(end - start for start, end in pairwise(ends))
