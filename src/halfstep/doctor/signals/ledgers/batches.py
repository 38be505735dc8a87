"""Samples of the batches of accumulation windows: whether dropped windows have the same batches.

A sample is a few elements of a batch on its device; samples are read at the program's end.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCHES = 512
ELEMENTS = 16
_OFTEN = 2  # times that a batch is dropped
_AGAIN = 4  # times that a sample of a dropped batch comes again, in whatever batch


class Batches:
    """The batches of the latest windows of an optimizer."""

    def __init__(self) -> None:
        self._given: list[torch.Tensor] = []  # since the last backward, which they may not reach
        self._open: list[torch.Tensor] = []
        self._used: deque[torch.Tensor] = deque(maxlen=BATCHES)
        self._dropped: deque[torch.Tensor] = deque(maxlen=BATCHES)

    def take(self, given: Sequence[torch.Tensor]) -> None:
        """Take a sample of a batch.

        Args:
            given: The tensors in the arguments of a model.
        """
        batch = next((each for each in given if type(each) is torch.Tensor and each.dim()), None)
        taken = len(self._given) + len(self._open)
        if batch is None or batch.layout is not torch.strided or taken >= BATCHES:
            return
        row = batch.detach()
        while row.dim() > 1:
            row = row[len(row) // 2] if len(row) else row.flatten()
        self._given.append(row[:ELEMENTS].clone())

    def count(self) -> None:
        """Note that a backward adds the gradients of the batches to the window."""
        self._open += self._given
        self._given.clear()

    def use(self) -> None:
        """Note that a step uses the batches of the window."""
        self._used += self._open

    def drop(self) -> None:
        """Note that the loop drops the window."""
        self._dropped += self._open

    def close(self) -> None:
        """Begin a new window."""
        self._given.clear()
        self._open.clear()

    def unseen(self) -> int:
        """Return the number of different batches that are always dropped.

        It is 0 unless they were dropped several times, and never used. So it is 0 if all batches
        are shuffled; if only those are shuffled that are dropped, their samples come again.
        """
        dropped = Counter(map(_value, self._dropped))
        again = dropped.total() - len(dropped)
        if not again or (again < _AGAIN and _OFTEN * len(dropped) > dropped.total()):
            return 0
        return 0 if dropped.keys() & {*map(_value, self._used)} else len(dropped)


def _value(sample: torch.Tensor) -> tuple[float, ...]:
    return tuple(sample.double().tolist())
