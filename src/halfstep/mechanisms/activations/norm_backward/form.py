"""How the sums of channels are divided among programs; the kernels and their definition share it.

Channels are adjacent in memory, and the gradient and the packed values are read in groups. The
channels of a group repeat after some groups. A program reads tiles of groups whose rows keep their
channels, so each sum stays in one place of a register until the last tile.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

ELEMENTS = 8192
"""Elements of a tile."""

MOST_PROGRAMS = 1024
"""A program takes several tiles if there would be more programs."""

ROWS = 128
"""Rows of sums that are added up together."""


class Tiles(NamedTuple):
    """The tiles of a tensor.

    Attributes:
        at_once: Number of groups of a tile, a power of two.
        stride: Distance of these groups, odd. As many tiles are interleaved.
        rows: Number of groups after which the channels of a tile repeat, a power of two.
        rounds: Number of tiles of a program, which are `at_once * stride` groups apart.
        parts: Number of programs for each of the interleaved tiles.
        lanes: Number of sums of a channel in each part, which are `channels` apart.
    """

    at_once: int
    stride: int
    rows: int
    rounds: int
    parts: int
    lanes: int

    @property
    def programs(self) -> int:
        """The number of programs."""
        return self.parts * self.stride

    def fit(self, elements: int, channels: int) -> bool:
        """Tell whether channels repeat within a tile, and there are few sums for the elements."""
        few = self.parts * self.lanes * channels <= elements // 8
        return self.rows <= self.at_once and few


def tiles_of(elements: int, channels: int, group: int) -> Tiles:
    """Return the tiles of a tensor with a number of adjacent channels, packed in groups."""
    at_once = ELEMENTS // group
    period = channels // gcd(channels, group)
    rows = period & -period
    stride = period // rows
    bands = -(-elements // (ELEMENTS * stride))
    # The sums of a program are `rows` groups in fp32, twice: few beside the tiles that it reads.
    rounds = max(rows, -(-bands * stride // MOST_PROGRAMS))
    return Tiles(at_once, stride, rows, rounds, -(-bands // rounds), group // gcd(channels, group))
