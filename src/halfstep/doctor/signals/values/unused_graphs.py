"""Gradients that the loop takes with `create_graph=True`, and through which no loss passes.

The graph of gradients costs time and memory, and serves to differentiate what is computed from
them: a penalty, or weights that were adapted. The graphs of backward passes, and of later calls of
`torch.autograd.grad`, are searched for these gradients. A line is left out as soon as one of them
is found, and as soon as the loop reads a value that was computed from them: it may only be shown.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from halfstep.doctor.internals import is_functorch_tensor, node_number
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tensors.nesting import is_in_graph, tensors_in
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.optim import Optimizer

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_NODES = 20_000
_LINES = 16
_STEPS = 64  # in which all graphs are searched; afterwards, those of sampled steps
_KEPT = 2  # steps for which gradients may wait for their loss
_TENSORS = 4096
_LEAF = "AccumulateGrad"
_SHAPES = frozenset(
    {"dim", "size", "numel", "stride", "is_contiguous", "__len__", "__hash__", "retain_grad"}
)


@dataclass(frozen=True, slots=True)
class UnusedGraph:
    """A line that takes gradients with a graph, and through which no loss passes.

    Attributes:
        steps: In how many steps.
        adapts: Whether the gradients are those of weights.
        site: The line.
    """

    steps: int
    adapts: bool
    site: Site | None


@dataclass(frozen=True, slots=True)
class UnusedGraphs:
    """All such lines."""

    signal: ClassVar[str] = "unused graphs"
    lines: tuple[UnusedGraph, ...] = ()


@dataclass(slots=True, eq=False)
class _Line:
    """A line that takes gradients.

    Attributes:
        adapts: Whether they are those of weights.
        is_used: Whether a loss passes through one of them, or the loop reads a value.
        is_open: Whether it has taken gradients since the last step.
        makes: Whether weights or a number were computed from the gradients.
        steps: Number of steps in which no loss has passed through them.
    """

    adapts: bool
    is_used: bool = False
    is_open: bool = False
    makes: bool = False
    steps: int = 0


class Graphs(Signal):
    """Follows such gradients."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lines: dict[Mark | None, _Line] = {}
        self._roots: dict[tuple[int, str], tuple[_Line, int]] = {}
        self._tensors: dict[int, tuple[weakref.ref[torch.Tensor], _Line, int]] = {}
        self._steps = 0
        self._on = True
        self._has_backward = False

    # ------------------------------------------------------------ events

    def on_call(self, heard: Heard) -> None:
        """Note gradients with a graph, and follow what the loop computes from them."""
        if not self._on:
            return
        if heard.call.function is torch.autograd.grad:
            self._differentiate(heard)
        elif self._tensors:
            lines = {line for each in heard.given if (line := self._line_of(each))}
            if lines:
                self._follow(heard, lines)

    def on_read(self, tensor: torch.Tensor) -> None:
        """Leave out a line from whose gradients a number is computed that the loop reads."""
        if self._tensors and (line := self._line_of(tensor)):
            line.is_used = True

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Follow the results of a model whose weights were computed from gradients."""
        del module, given
        if self._on and self._roots:
            for line in self._reached(made):
                self._keep(made, line)

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Search the graphs of losses."""
        self._has_backward = True
        if self._on and self._roots:
            self._use(self._reached(losses) if losses else self._lines.values())

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Close a step."""
        del number, mark
        if self._tensors:
            gradients = [each.grad for each in parameters_of(optimizer)]
            self._use(
                line for each in gradients if each is not None and (line := self._line_of(each))
            )
            self._forget()
        if self._has_backward:
            for line in self._lines.values():
                line.steps += line.is_open
                line.is_open = False
        self._has_backward = False
        self._steps += 1
        undecided = not self._lines or not all(each.is_used for each in self._lines.values())
        self._on = undecided and (self._steps < _STEPS or is_sampled(self._steps))

    def freeze(self) -> dict[str, Any]:
        """Return the lines through whose gradients no loss has passed."""
        lines = tuple(
            UnusedGraph(each.steps, each.adapts, site(mark))
            for mark, each in self._lines.items()
            if each.steps and each.makes and not each.is_used
        )
        return {UnusedGraphs.signal: UnusedGraphs(lines)}

    # ------------------------------------------------------------ gradients

    def _differentiate(self, heard: Heard) -> None:
        args, options = heard.call.args, heard.call.kwargs
        outputs = tensors_in(args[0] if args else options.get("outputs"))
        inputs = tensors_in(args[1] if len(args) > 1 else options.get("inputs"))
        if self._roots:
            self._use(self._reached(outputs, inputs))
        made = [each for each in tensors_in(heard.result) if is_in_graph(each)]
        is_plain = not any(map(is_functorch_tensor, made))
        if not options.get("create_graph", len(args) > 4 and args[4]) or not made or not is_plain:
            return
        mark = calling_line()
        if mark not in self._lines and len(self._lines) >= _LINES:
            return
        adapts = len(inputs) > 1 or any(
            isinstance(each, nn.Parameter) or self._line_of(each) for each in inputs
        )
        line = self._lines.setdefault(mark, _Line(adapts))
        if not line.is_used:
            line.is_open = True
            for each in made:
                self._roots[_key(each.grad_fn)] = line, self._steps
            self._keep(made, line)

    def _follow(self, heard: Heard, lines: set[_Line]) -> None:
        name = heard.name
        if name in _SHAPES or name.startswith("new_") or name.endswith("_like"):
            return
        made = tensors_in(heard.call.args[:1] if heard.result is None else heard.result)
        derived = [each for each in made if is_in_graph(each)]
        if not derived:
            self._use(lines)
        for line in lines:
            line.makes |= line.adapts or any(each.numel() == 1 for each in derived)
            self._keep(derived, line)

    def _keep(self, tensors: Iterable[torch.Tensor], line: _Line) -> None:
        for each in tensors:
            if len(self._tensors) >= _TENSORS:
                self._use([line])  # unknown
            else:
                self._tensors[id(each)] = weakref.ref(each), line, self._steps

    def _line_of(self, tensor: torch.Tensor) -> _Line | None:
        known = self._tensors.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _use(self, lines: Iterable[_Line]) -> None:
        for line in lines:
            line.is_used = True

    def _forget(self) -> None:
        """Forget old gradients; those that the program keeps may be used at any time."""
        oldest = self._steps - _KEPT
        for reference, line, step in self._tensors.values():
            if step <= oldest and reference() is not None:
                line.is_used = True
        self._tensors = {
            key: each
            for key, each in self._tensors.items()
            if each[2] > oldest and not each[1].is_used and each[0]() is not None
        }
        self._roots = {
            key: each
            for key, each in self._roots.items()
            if each[1] > oldest and not each[0].is_used
        }

    def _reached(
        self, tensors: Iterable[torch.Tensor], until: Iterable[torch.Tensor] = ()
    ) -> set[_Line]:
        """Return the lines whose gradients a graph contains, above some tensors; all if unknown."""
        seen = {each.grad_fn for each in until if is_in_graph(each)}
        waiting = [each.grad_fn for each in tensors if is_in_graph(each)]
        found: set[_Line] = set()
        count = 0
        while waiting:
            node = waiting.pop()
            if node is None or node in seen or type(node).__name__ == _LEAF:
                continue
            seen.add(node)
            count += 1
            if count > _NODES:
                return {line for line, _ in self._roots.values()}
            root = self._roots.get(_key(node))
            if root is not None:
                found.add(root[0])
            waiting += [each for each, _ in node.next_functions]
        return found


def _key(node: Any) -> tuple[int, str]:
    """Return what tells a node: numbers count anew in each thread that makes nodes."""
    return node_number(node), type(node).__name__
