"""Computes how a matrix product is split into tiles, and how well the tiles fill a GPU.

A product with M x N outputs is computed in tiles, one per multiprocessor at a time. Work is lost
where tiles extend beyond the edge of the output, and where multiprocessors are idle in the last
wave. A tile also takes a time that does not depend on K (loading the first operands, storing the
result): the ramp. If there are fewer tiles than multiprocessors, several multiprocessors share a
tile by splitting K.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPES = (
    (256, 128, 1.0),
    (128, 256, 1.0),
    (128, 128, 0.97),
    (256, 64, 0.9),
    (64, 256, 0.9),
    (128, 64, 0.85),
    (64, 128, 0.85),
    (64, 64, 0.7),
    (128, 32, 0.6),
    (32, 128, 0.6),
    (64, 32, 0.5),
    (32, 64, 0.5),
    (32, 32, 0.3),
)
"""Tiles of CUTLASS and cuDNN as (rows, columns, share of the peak rate that the tile can reach):
small tiles load more data per multiplication."""

SPLIT = 1024
"""Minimum length of each part of K when K is split."""


class Tiling(NamedTuple):
    """The cost of products with each tile shape, in operations of the whole GPU at its peak rate.

    Attributes:
        work: (S, R) for S tile shapes and R rows; operations including all lost ones.
        ramp: (S, R); operations for each unit of K that a ramp is equivalent to.
    """

    work: NDArray[np.float64]
    ramp: NDArray[np.float64]

    def operations(self, ramp: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (R,), the operations of each row with its best tile; `ramp` is in units of K."""
        best: NDArray[np.float64] = (self.work + ramp * self.ramp).min(axis=0)
        return best


def tiling(
    m: NDArray[np.float64],
    n: NDArray[np.float64],
    k: NDArray[np.float64],
    groups: NDArray[np.float64],
    sms: NDArray[np.float64],
) -> Tiling:
    """Return the cost of `groups` products of M x N x K on GPUs with `sms` multiprocessors."""
    work, ramp = [], []
    for rows, columns, rate in SHAPES:
        tiles = np.maximum(np.ceil(m / rows) * np.ceil(n / columns) * groups, 1)
        split = np.clip(np.floor(sms / tiles), 1, np.maximum(1, k // SPLIT))
        waves = np.ceil(tiles * split / sms)
        operations = waves * sms * 2 * rows * columns / rate
        work.append(operations * k / split)
        ramp.append(operations)
    return Tiling(np.array(work), np.array(ramp))
