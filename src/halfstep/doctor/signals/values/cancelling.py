"""Sums such as x + (y - x) in the graph of a loss, which pass no gradient on to x.

Such a sum is y, and the gradients of its two uses of x cancel, in whatever order it is written. It
is meant as a straight-through estimator, x + (y - x).detach(). The graphs of a few backward passes
are searched.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch

    from halfstep.doctor.signals.watched import Watched

NODES = 20_000
SEARCHES = 12
_SIGNS = {"AddBackward0": (1, 1), "SubBackward0": (1, -1), "NegBackward0": (-1,)}
_TERMS = 4


@dataclass(frozen=True, slots=True)
class CancellingLine:
    """A line whose backward passes go through such sums.

    Attributes:
        searched: Number of its backward passes whose graphs were searched.
        found: Number of these with such a sum.
        sums: Number of such sums in the first of them.
        site: The line.
    """

    searched: int
    found: int
    sums: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class CancellingLines:
    """All such lines."""

    signal: ClassVar[str] = "cancelling"
    lines: tuple[CancellingLine, ...] = ()


class Cancelling(Signal):
    """Searches the graphs of the first backward passes, and of ever fewer later ones."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._count = 0
        self._searches = 0
        self._lines: dict[Mark | None, list[int]] = {}

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Search the graph of the losses."""
        self._count += 1
        if self._searches >= SEARCHES or not is_sampled(self._count):
            return
        self._searches += 1
        sums = sum(1 for _ in _cancelling(losses))
        line = self._lines.setdefault(calling_line(), [0, 0, 0])
        line[0] += 1
        line[1] += sums > 0
        line[2] = line[2] or sums

    def freeze(self) -> dict[str, Any]:
        """Return the lines."""
        lines = tuple(
            CancellingLine(searched, found, sums, site(mark))
            for mark, (searched, found, sums) in self._lines.items()
            if found
        )
        return {CancellingLines.signal: CancellingLines(lines)}


def _cancelling(losses: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Yield the nodes of such sums."""
    waiting: list[Any] = [each.grad_fn for each in losses if each.grad_fn is not None]
    uses = Counter(waiting)
    while waiting and len(uses) < NODES:
        below = [each for each, _ in waiting.pop().next_functions if each is not None]
        waiting += {*below} - uses.keys()
        uses.update(below)
    yield from (each for each in uses if type(each).__name__ in _SIGNS and _cancels(each, uses))


def _cancels(node: Any, uses: Counter[Any]) -> bool:
    """Return whether a sum comes to one term, because the uses of another one cancel.

    A sum x + y that has another use is a value of its own, such as a sample, mean + noise, whose
    likelihood is computed from its difference to the mean.
    """
    factors: Counter[tuple[Any, int]] = Counter()
    constants, waiting = 0, [((node, 0), 1)]
    while waiting:
        (inner, output), factor = waiting.pop()
        signs = _SIGNS.get(type(inner).__name__)
        if inner is None:
            constants += 1
        elif inner is not node and sum(signs or ()) == 2 and uses[inner] > 1:
            factors[inner, output] += factor
        elif signs and getattr(inner, "_saved_alpha", 1) == 1:
            edges = inner.next_functions
            if sum(signs) == 0 and edges[0] == edges[1]:
                return False  # x - x makes zeros on purpose.
            waiting += [(edge, factor * sign) for edge, sign in zip(edges, signs, strict=False)]
        else:
            factors[inner, output] += factor
        if len(waiting) + len(factors) + constants > _TERMS:
            return False
    left = sum(map(bool, factors.values()))
    return left < len(factors) and left + constants == 1
