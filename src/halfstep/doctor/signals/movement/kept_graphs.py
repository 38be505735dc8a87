"""Losses that the loop keeps with their graphs: in a running sum, or in a list.

A sum of losses of several steps that is no number keeps the graph of each loss, and memory grows
with each step. Sums are followed from one addition to the next; losses in a list stay alive.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.record.source import only_line_with
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tensors.nesting import is_in_graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

LOSSES = 24  # the first losses, which are looked for later
LATER = 64  # backward passes after the first one
_SUMS = 256
_ADDS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
_APPENDED = r"\.append\(\s*[\w.]*loss\w*\s*\)"


@dataclass(frozen=True, slots=True)
class KeptGraphs:
    """What keeps the graphs of losses.

    Attributes:
        steps: The most steps whose losses one sum has added up with their graphs, without a
            backward pass of it; between these steps, weights were updated.
        losses: How many of the first losses are still alive with their graphs.
        site: The line that adds; that which appends to a list, if it is the only one.
    """

    signal: ClassVar[str] = "kept_graphs"
    steps: int = 0
    losses: int = 0
    site: Site | None = None


@dataclass(slots=True)
class _Sum:
    tensor: weakref.ref[torch.Tensor]
    steps: int
    last: int


class KeepingGraphs(Signal):
    """Follows sums, and looks for the first losses later."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._sums: dict[int, _Sum] = {}
        self._longest = 0
        self._mark: Mark | None = None
        self._losses: list[weakref.ref[torch.Tensor]] = []
        self._count = 0
        self._alive = 0
        self._backward: Mark | None = None

    def on_call(self, heard: Heard) -> None:
        """Follow a sum of numbers with a graph."""
        result = heard.result
        if heard.name not in _ADDS or not isinstance(result, torch.Tensor) or result.ndim:
            return
        if not is_in_graph(result):
            return
        made, before = self.watched.grammar.made, None
        for each in heard.given:
            known = self._sums.get(id(each))
            if known is not None and (known.tensor() is each):
                before = known
        steps = 1
        if before is not None:
            steps = before.steps + (before.last != made)
        if len(self._sums) >= _SUMS:
            self._sums = {
                key: each for key, each in self._sums.items() if each.tensor() is not None
            }
            if len(self._sums) >= _SUMS:
                self._sums.clear()
        self._sums[id(result)] = _Sum(weakref.ref(result), steps, made)
        if steps > self._longest:
            self._longest, self._mark = steps, calling_line()

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Remember the first losses, look for them later, and forget sums that are used."""
        self._count += 1
        for each in losses:
            self._sums.pop(id(each), None)
            if len(self._losses) < LOSSES:
                self._losses.append(weakref.ref(each))
        if self._count == LATER:
            alive = [reference() for reference in self._losses]
            self._alive = sum(each is not None and is_in_graph(each) for each in alive)
            self._backward = calling_line()

    def freeze(self) -> dict[str, Any]:
        """Return what keeps graphs."""
        is_list = self._alive > self._longest
        mark = only_line_with(_APPENDED, self._backward) if is_list else self._mark
        return {KeptGraphs.signal: KeptGraphs(self._longest, self._alive, site(mark))}
