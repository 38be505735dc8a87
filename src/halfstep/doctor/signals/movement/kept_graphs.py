"""Losses that the loop keeps with their graphs: in a running sum, in a tensor, or in a list.

A tensor that is computed from one of the step before, and so on, keeps the graphs of all these
steps, and memory grows with each step. It may be a sum or a moving average of losses, or a table
into which the loop writes them. Losses in a list stay alive.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.internals import node_number
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.record.source import only_line_with
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tensors.nesting import is_in_graph
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

LOSSES = 24  # the first losses, which are looked for later
_TERMS = 64  # of a step
LATER = 64  # backward passes after the first one
_SHORT = 40  # the fewest backward passes of a program that ends before
_SUMS = 256
ADDS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
_APPENDED = r"\.append\(\s*[\w.]*loss\w*\s*\)"


@dataclass(frozen=True, slots=True)
class KeptGraphs:
    """What keeps the graphs of losses.

    Attributes:
        steps: The most steps whose graphs one tensor keeps, without a backward pass of it; between
            these steps, weights were updated.
        by: Name of the function that makes this tensor from the one of the step before.
        losses: How many of the first losses are still alive with their graphs.
        site: The line of this function; that which appends to a list, if it is the only one.
    """

    signal: ClassVar[str] = "kept_graphs"
    steps: int = 0
    by: str = ""
    losses: int = 0
    site: Site | None = None


@dataclass(slots=True)
class _Sum:
    tensor: weakref.ref[torch.Tensor]
    steps: int
    last: int


class KeepingGraphs(Signal):
    """Follows tensors from step to step, and looks for the first losses later."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._sums: dict[int, _Sum] = {}
        self._longest = 0
        self._mark: Mark | None = None
        self._by = ""
        self._last = 0, -1  # steps before the last backward pass, and the last node of its graph
        self._losses: list[list[weakref.ref[torch.Tensor]]] = []  # with their terms, by step
        self._terms: list[weakref.ref[torch.Tensor]] = []
        self._count = 0
        self._alive = 0
        self._backward: Mark | None = None

    def on_call(self, heard: Heard) -> None:
        """Follow a sum of numbers with a graph, and what else goes on from an earlier step."""
        result = heard.result if heard.result is not None else next(iter(heard.call.args), None)
        if not isinstance(result, torch.Tensor) or not is_in_graph(result):
            return
        self._note_terms([result])
        made, steps, is_old = self.watched.grammar.made, 0, False
        for each in heard.given:
            known = self._sums.get(id(each))
            if known is not None and (known.tensor() is each):
                steps = max(steps, known.steps + (known.last != made))
            is_old = is_old or self._is_old(each)
        is_sum = heard.name in ADDS and not result.ndim
        if not is_sum and not steps and not is_old:
            return
        steps = max(steps, 1)
        if len(self._sums) >= _SUMS:
            self._sums = {
                key: each for key, each in self._sums.items() if each.tensor() is not None
            }
            if len(self._sums) >= _SUMS:
                self._sums.clear()
        self._sums[id(result)] = _Sum(weakref.ref(result), steps, made)
        if steps > self._longest:
            self._longest, self._mark, self._by = steps, calling_line(), heard.name

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Note losses that a model computes."""
        del module, given
        self._note_terms(made)

    def _note_terms(self, made: Sequence[torch.Tensor]) -> None:
        """Note numbers with a graph: what goes backward may be a quotient or a sum of them."""
        if len(self._losses) < LOSSES and len(self._terms) < _TERMS:
            self._terms += [
                weakref.ref(each) for each in made if not each.ndim and is_in_graph(each)
            ]

    def before_write(
        self, name: str, written: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Note a tensor with the graph of an earlier step before the loop writes it."""
        del name, values
        for each in written:
            known = self._sums.get(id(each))
            if (known is None or known.tensor() is not each) and self._is_old(each):
                self._sums[id(each)] = _Sum(weakref.ref(each), 1, self.watched.grammar.made - 1)

    def _is_old(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor was computed before the last step."""
        made, node = self._last
        return (
            made < self.watched.grammar.made
            and is_in_graph(tensor)
            and node_number(tensor.grad_fn) <= node
        )

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Remember the first losses, look for them later, and forget sums that are used."""
        self._count += 1
        numbers = [node_number(each.grad_fn) for each in losses if is_in_graph(each)]
        self._last = self.watched.grammar.made, max(numbers, default=-1)
        for each in losses:
            self._sums.pop(id(each), None)
            if len(self._losses) < LOSSES:
                self._losses.append([weakref.ref(each), *self._terms])
        self._terms = []
        if self._count <= LATER:
            self._backward = calling_line()
        if self._count == LATER:
            self._look()

    def _look(self) -> None:
        self._alive = sum(
            any((term := each()) is not None and is_in_graph(term) for each in loss)
            for loss in self._losses
        )

    def freeze(self) -> dict[str, Any]:
        """Return what keeps graphs."""
        if _SHORT <= self._count < LATER:
            self._look()
        is_list = self._alive > self._longest
        mark = only_line_with(_APPENDED, self._backward) if is_list else self._mark
        return {KeptGraphs.signal: KeptGraphs(self._longest, self._by, self._alive, site(mark))}
