"""Items `operators-N`: the times of the commonest operators; `operator_file.py` joins them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.bench.operators import measuring
from halfstep.bench.operators.timing import launch_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.turns import Row

SPARE = 2.0
"""Seconds before the deadline in which no operator is begun."""


def rows(at: At, piece: str, pieces: str) -> Iterator[Row]:
    """Yield the time of a launch, then that of every operator of a piece of the list.

    Args:
        at: The device.
        piece: The number of the first operator.
        pieces: The distance from one operator to the next.
    """
    device = torch.device(at.device)
    yield {"launch_seconds": launch_seconds(device)}
    listed = measuring.commonest()[int(piece) :: int(pieces)]
    shrink = 16 if at.toy else 1
    for row in measuring.rows(listed[:2] if at.toy else listed, device, shrink=shrink):
        yield row
        if at.left() < SPARE:
            yield {"refused": "no time was left for the other operators"}
            break
