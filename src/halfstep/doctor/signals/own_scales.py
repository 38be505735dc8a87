"""Loss scales in the loop's own code: the numbers that it multiplies a loss by.

They are recognised by their behaviour, line by line. A loop that has met an overflow lowers its
loss scale without a step in between. A schedule also lowers a loss weight, but with steps in
between.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record import OwnScale
from halfstep.doctor.record.sites import Mark, site

if TYPE_CHECKING:
    from collections.abc import Iterator

LINES = 64


@dataclass(slots=True)
class Line:
    """The notes of one line's number.

    Attributes:
        first: The first value.
        last: The latest value.
        made: Number of iterations with a step before the latest value.
        rises: How often it increased.
        drops: How often it decreased without a step in between.
        dropped_at: Number of iterations with a step before the first decrease.
    """

    first: float
    last: float
    made: int
    rises: int = 0
    drops: int = 0
    dropped_at: int = -1


class OwnScales:
    """Follows the factors of losses."""

    def __init__(self) -> None:
        self._lines: dict[Mark | None, Line] = {}

    def take(self, mark: Mark | None, number: Any, made: int, *, inverse: bool = False) -> None:
        """Note that a loss was multiplied.

        Args:
            mark: The line.
            number: The factor: a number, or a tensor of one element.
            made: Number of iterations with a step.
            inverse: Whether it is a divisor.
        """
        value = _value(number)
        if value is None:
            return
        value = 1 / value if inverse else value
        known = self._lines.get(mark)
        if known is None:
            if len(self._lines) < LINES:
                self._lines[mark] = Line(value, value, made)
            return
        if value > known.last:
            known.rises += 1
        elif value < known.last and made == known.made:
            known.drops += 1
            known.dropped_at = made if known.dropped_at < 0 else known.dropped_at
        known.last, known.made = value, made

    @property
    def dropping(self) -> bool:
        """Whether one has decreased, without a step since."""
        return any(each.drops and each.dropped_at == each.made for each in self._lines.values())

    def freeze(self, made: int) -> Iterator[OwnScale]:
        """Yield the numbers that have decreased.

        Args:
            made: Number of iterations with a step.
        """
        for mark, each in self._lines.items():
            if each.drops:
                yield OwnScale(
                    first=each.first,
                    last=each.last,
                    rises=each.rises,
                    drops=each.drops,
                    steps=made - each.dropped_at,
                    site=site(mark),
                )


def _value(number: Any) -> float | None:
    if isinstance(number, torch.Tensor):  # To read one of an accelerator is to wait for it.
        if number.numel() != 1 or number.device.type != "cpu" or number.requires_grad:
            return None
        number = number.item()
    if not isinstance(number, int | float) or not isfinite(number) or number <= 0:
        return None
    return float(number)
