"""Losses that are divided by the number of micro-batches more than once.

The graph of a loss ends with the divisions of the loop and of a library around it, such as
Accelerate's `backward`. Both divide by the number of micro-batches of a step, where one should.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from halfstep.doctor.internals import saved_by
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from torch.optim import Optimizer

    from halfstep.doctor.signals.watched import Watched

_EXAMINED, _NODES = 64, 12
_PASSES = frozenset({"ToCopyBackward0", "AliasBackward0", "ViewBackward0", "SqueezeBackward0"})


@dataclass(frozen=True, slots=True)
class Division:
    """A line whose backward passes start from losses that are divided by a number twice.

    Attributes:
        divisor: The number.
        count: Number of such backward passes among the examined ones.
        per_step: Number of backward passes for each step.
        site: The line.
    """

    divisor: int
    count: int
    per_step: float
    site: Site | None


@dataclass(frozen=True, slots=True)
class Divisions:
    """All such lines."""

    signal: ClassVar[str] = "divisions"
    lines: tuple[Division, ...] = ()


class DivisionSignal(Signal):
    """Keeps the numbers at the ends of the graphs of the first losses; the end reads them."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._passes, self._steps = 0, 0
        self._ends: list[tuple[Mark | None, list[tuple[bool, torch.Tensor]]]] = []

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Keep the numbers of the loss of a backward pass."""
        self._passes += 1
        if self._passes <= _EXAMINED and len(losses) == 1:
            numbers = [*_numbers(losses[0])]
            if len(numbers) > 1:
                self._ends.append((calling_line(), numbers))

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Count a step."""
        del optimizer, mark
        self._steps += number == 0

    def freeze(self) -> dict[str, Any]:
        """Return these lines."""
        lines: Counter[tuple[int, Mark | None]] = Counter()
        for mark, numbers in self._ends:
            for divisor, times in Counter(map(_divisor, numbers)).items():
                lines[divisor, mark] += divisor > 1 and times > 1
        per_step = self._passes / max(1, self._steps)
        found = (
            Division(divisor, count, per_step, site(mark))
            for (divisor, mark), count in lines.items()
            if count
        )
        return {Divisions.signal: Divisions(tuple(found))}


def _numbers(loss: torch.Tensor) -> Iterator[tuple[bool, torch.Tensor]]:
    """Yield the divisors (True) and factors (False) at the end of the graph of a loss."""
    node: Any = loss.grad_fn
    for _ in range(_NODES):
        name = type(node).__name__
        if name in {"DivBackward0", "MulBackward0"}:
            number = saved_by(node, "other")
            if number is None or number.numel() != 1 or number.device.type != "cpu":
                return
            yield name == "DivBackward0", number
        elif name not in _PASSES:
            return
        node = node.next_functions[0][0]


def _divisor(number: tuple[bool, torch.Tensor]) -> int:
    """Return the whole number by which a loss is divided; 1 for another factor."""
    divides, value = number[0], float(number[1])
    divisor = value if divides else 1 / value if value else 1.0
    return int(divisor) if math.isfinite(divisor) and divisor == round(divisor) else 1
