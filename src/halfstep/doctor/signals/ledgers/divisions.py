"""Losses that are divided by the number of micro-batches more than once.

The graph of a loss ends with the divisions of the loop and of a library around it, such as
Accelerate's `backward`. Both divide by the number of micro-batches of a step, where one should.
"""

from __future__ import annotations

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

_EXAMINED, _NODES, _LINES = 64, 12, 16
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
    """Examines the ends of the graphs of the first losses."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._passes, self._steps = 0, 0
        self._lines: Counter[tuple[int, Mark | None]] = Counter()

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Examine the loss of a backward pass."""
        self._passes += 1
        if self._passes > _EXAMINED or len(losses) != 1:
            return
        for divisor, times in Counter(_divisors(losses[0])).items():
            if times > 1 and len(self._lines) < _LINES:
                self._lines[divisor, calling_line()] += 1

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Count a step."""
        del optimizer, mark
        self._steps += number == 0

    def freeze(self) -> dict[str, Any]:
        """Return these lines."""
        per_step = self._passes / max(1, self._steps)
        found = (
            Division(divisor, count, per_step, site(mark))
            for (divisor, mark), count in self._lines.items()
        )
        return {Divisions.signal: Divisions(tuple(found))}


def _divisors(loss: torch.Tensor) -> Iterator[int]:
    """Yield the whole numbers by which a loss is divided at the end of its graph."""
    node: Any = loss.grad_fn
    for _ in range(_NODES):
        name = type(node).__name__
        if name in {"DivBackward0", "MulBackward0"}:
            number = saved_by(node, "other")
            if number is None or number.numel() != 1 or number.device.type != "cpu":
                return
            value = float(number)
            divisor = value if name == "DivBackward0" else 1 / value if value else 0.0
            if divisor >= 2 and divisor == round(divisor):
                yield int(divisor)
        elif name not in _PASSES:
            return
        node = node.next_functions[0][0]
