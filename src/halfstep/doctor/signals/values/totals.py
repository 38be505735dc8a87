"""Running totals in half precision that the loop keeps itself, to which it adds without effect.

A total is recognised by what is done to it: one line adds numbers of one sign to it again and
again, and it is no larger than these numbers can have made it.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tensors.nesting import is_in_graph
from halfstep.formats import format_name
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_ADDITIONS = {"add_", "__iadd__", "add", "__add__", "__radd__"}
_BY_INDEX = {"index_add_", "index_add", "scatter_add_", "scatter_add"}
_LINES = 64
_TOTALS = 8  # of one line
_LOOKS = 256  # each waits for an accelerator


@dataclass(frozen=True, slots=True)
class Total:
    """A line that adds numbers to a running total in half precision.

    Attributes:
        format: The half format.
        largest: The largest magnitude in the total.
        lost: Number of elements, of those to which something was added, that it did not change, at
            the addition with the largest share of them.
        count: Number of elements to which something was added.
        additions: Number of additions in this line.
        site: The line.
    """

    format: str
    largest: float
    lost: int
    count: int
    additions: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class Totals:
    """All such lines."""

    signal: ClassVar[str] = "totals"
    lines: tuple[Total, ...] = ()


@dataclass(slots=True)
class _Line:
    additions: int = 0
    results: deque[weakref.ref[torch.Tensor]] = field(default_factory=lambda: deque(maxlen=_TOTALS))
    worst: tuple[str, float, int, int] = ("", 0.0, 0, 1)


class TotalSignal(Signal):
    """Examines some additions of each line."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lines: dict[Mark | None, _Line] = {}
        self._looks = 0

    def on_call(self, heard: Heard) -> None:
        """Examine an addition to a half-precision tensor outside any graph."""
        is_by_index = heard.name in _BY_INDEX
        if not heard.halves or heard.call.kwargs:
            return
        if not is_by_index and heard.name not in _ADDITIONS:
            return
        total, (before, addend) = heard.halves[0], heard.call.args[:2]
        if heard.name == "__radd__":
            before, addend = addend, before
        if total.requires_grad or is_in_graph(total) or not isinstance(before, torch.Tensor):
            return
        mark = calling_line()
        if mark not in self._lines and len(self._lines) >= _LINES:
            return
        line = self._lines.setdefault(mark, _Line())
        if not any(each() is before for each in line.results):
            line.results.append(weakref.ref(total))
            return
        if total is not before:
            line.results.append(weakref.ref(total))
        line.additions += 1
        if is_sampled(line.additions) and self._looks < _LOOKS:
            self._looks += 1
            total, again = total.detach(), None
            if is_by_index:  # Each of several numbers for an element may be lost.
                function, rest = heard.call.function, heard.call.args[1:]
                again = function(total.clone(), *rest)
                addend = function(torch.zeros_like(total), *rest)
            self._look(line, total, addend, again)

    @staticmethod
    def _look(line: _Line, total: torch.Tensor, addend: Any, again: torch.Tensor | None) -> None:
        if not isinstance(addend, torch.Tensor | int | float) or not total.numel():
            return
        added = torch.as_tensor(addend, device=total.device).detach().expand_as(total)
        if bool((added > 0).any()) and bool((added < 0).any()):
            return
        adds = added != 0
        built = total.abs().float() <= 2 * line.additions * added.abs().float()
        lost = ((total + added if again is None else again) == total) & adds & built & (total != 0)
        mine = int(lost.sum()), int(adds.sum())
        if mine[0] * line.worst[3] > line.worst[2] * mine[1]:
            line.worst = format_name(total.dtype), float(total.abs().max()), *mine

    def freeze(self) -> dict[str, Any]:
        """Return the lines that add without effect."""
        found = (
            Total(form, largest, lost, count, line.additions, site(mark))
            for mark, line in self._lines.items()
            for form, largest, lost, count in (line.worst,)
            if lost
        )
        return {Totals.signal: Totals(tuple(found))}
