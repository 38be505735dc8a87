"""How a matrix product is cut into tiles, and how well these fill a GPU.

A product of M x N outputs is computed in tiles, one to a multiprocessor at a time. What the tiles
reach over the edge, and the multiprocessors that idle in the last wave, are lost. A tile also takes
a time that does not depend on K (loading the first operands, storing the result): the ramp. Where
there are fewer tiles than multiprocessors, K is split between several.
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
"""Tiles of CUTLASS and cuDNN, and the share of the peak rate that each can reach: small tiles load
more for each multiplication."""

SPLIT = 1024
"""The least that is left of K when it is split."""


class Tiling(NamedTuple):
    """What a product costs by shape of tile, in operations of the whole GPU at its peak.

    Attributes:
        work: Operations with everything that is lost, S x R: shapes of tiles by rows.
        ramp: The same for each unit of K that the ramp is worth.
    """

    work: NDArray[np.float64]
    ramp: NDArray[np.float64]

    def operations(self, ramp: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the operations of each row with its best tile; `ramp` is in units of K."""
        best: NDArray[np.float64] = (self.work + ramp * self.ramp).min(axis=0)
        return best


def tiling(
    m: NDArray[np.float64],
    n: NDArray[np.float64],
    k: NDArray[np.float64],
    groups: NDArray[np.float64],
    sms: NDArray[np.float64],
) -> Tiling:
    """Return what products of M x N x K cost on GPUs with some number of multiprocessors."""
    work, ramp = [], []
    for rows, columns, rate in SHAPES:
        tiles = np.maximum(np.ceil(m / rows) * np.ceil(n / columns) * groups, 1)
        split = np.clip(np.floor(sms / tiles), 1, np.maximum(1, k // SPLIT))
        waves = np.ceil(tiles * split / sms)
        operations = waves * sms * 2 * rows * columns / rate
        work.append(operations * k / split)
        ramp.append(operations)
    return Tiling(np.array(work), np.array(ramp))
