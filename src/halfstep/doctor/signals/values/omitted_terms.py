"""Sums of terms of which the loop calls backward on a part only, and shows the rest.

In sampled steps, the sums of scalars that the loop computes are compared with its loss. A sum that
contains all terms of the loss, and others, may be the intended loss. In one step, the gradients of
the other terms are computed; from then on, the gradients of the step are compared with them. The
terms are omitted if a row of a parameter would get a gradient from them, and gets none ever.
"""

from __future__ import annotations

from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge

from halfstep.doctor.internals import node_number
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tensors.graph import terms_in
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.optim import Optimizer

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_SUMS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
_LATEST = 8  # sums before a backward pass
_MOST_NODES = 5000
_FEWEST = 3  # steps with the same sum and the same backward pass
_FEWEST_AFTER = 4  # steps in which the gradients are looked at
_STEPS = 512  # in which all gradients are looked at; afterwards, those of sampled steps


@dataclass(frozen=True, slots=True)
class OmittedTerms:
    """Rows of parameters that only get gradients from terms that are left out.

    Attributes:
        names: The names of the parameters.
        rows: Number of these rows.
        steps: Number of steps in which their gradients were looked at.
        sum: The line of the sum; None if there is no such sum.
        backward: The line of the backward pass.
    """

    signal: ClassVar[str] = "omitted_terms"
    names: tuple[str, ...] = ()
    rows: int = 0
    steps: int = 0
    sum: Site | None = None
    backward: Site | None = None


class Omitting(Signal):
    """Compares the sums of the loop with its loss."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._passes, self._steps, self._after = 1, 0, 0
        self._sums: deque[tuple[Any, Mark | None]] = deque(maxlen=_LATEST)
        self._pairs: Counter[tuple[Mark | None, Mark | None]] = Counter()
        self._of: Counter[Mark | None] = Counter()
        self._found: tuple[Mark | None, Mark | None] | None = None
        self._rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._moved: set[int] = set()

    def on_call(self, heard: Heard) -> None:
        """Keep the sums of scalars until the next backward pass."""
        result = heard.result
        if self._found is not None or heard.module is not None or heard.name not in _SUMS:
            return
        if (
            isinstance(result, torch.Tensor)
            and result.requires_grad
            and not result.ndim
            and (is_sampled(self._passes) or is_sampled(self._passes - 1))
        ):
            self._sums.append((result.grad_fn, calling_line()))

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Look for sums with more terms than the loss."""
        self._passes += 1
        sums = [*self._sums]
        self._sums.clear()
        if self._found is not None or not sums or len(losses) != 1 or losses[0].grad_fn is None:
            return
        mark = calling_line()
        self._of[mark] += 1
        own = {node_number(each) for each in terms_in(losses)}
        for node, line in reversed(sums):
            terms = {node_number(each): each for each in terms_in((), [node])}
            if own and own < terms.keys():
                self._pairs[line, mark] += 1
                if self._pairs[line, mark] == self._of[mark] >= _FEWEST:
                    others = [each for number, each in terms.items() if number not in own]
                    with suppress(RuntimeError):  # as of a graph that is freed
                        self._differentiate(others)
                    self._found = line, mark
                return

    def _differentiate(self, terms: Sequence[Any]) -> None:
        """Note which rows of parameters get a gradient from terms."""
        leaves = _leaves(terms)
        if not leaves:
            return
        edges = [GradientEdge(each, 0) for each in terms]
        gradients = torch.autograd.grad(edges, leaves, retain_graph=True, allow_unused=True)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            if gradient is not None:
                rows = _rows(gradient)
                self._rows[id(leaf)] = rows, torch.zeros_like(rows)

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Note which rows get a gradient."""
        del number, mark
        if not self._rows:
            return
        self._after += 1
        if self._after > _STEPS and not is_sampled(self._after):
            return
        self._steps += 1
        for each in parameters_of(optimizer):
            if id(each) in self._rows:
                self._moved.add(id(each))
                if each.grad is not None:
                    self._rows[id(each)][1].logical_or_(_rows(each.grad))

    def freeze(self) -> dict[str, Any]:
        """Return the rows that never got a gradient."""
        if self._found is None or self._steps < _FEWEST_AFTER:
            return {OmittedTerms.signal: OmittedTerms()}
        named = {id(each): name for name, each in self.watched.registry.names().items()}
        counts = {
            named.get(key, "a parameter"): int((wanted & ~got).sum())
            for key, (wanted, got) in self._rows.items()
            if key in self._moved
        }
        names = tuple(name for name, count in counts.items() if count)
        if not names:
            return {OmittedTerms.signal: OmittedTerms()}
        lines = map(site, self._found)
        found = OmittedTerms(names, sum(counts.values()), self._steps, *lines)
        return {OmittedTerms.signal: found}


def _rows(gradient: torch.Tensor) -> torch.Tensor:
    """Return which rows of a gradient are not all 0."""
    return gradient.detach().reshape(max(1, len(gradient) if gradient.ndim else 1), -1).any(1)


def _leaves(roots: Iterable[Any]) -> list[torch.Tensor]:
    """Return the dense parameters below some nodes.

    None for a large graph, and for one in which code of the program runs in a backward pass.
    """
    leaves: list[torch.Tensor] = []
    waiting = [*roots]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(node, BackwardCFunction) or len(seen) > _MOST_NODES:
            return []
        if type(node).__name__ == "AccumulateGrad":
            if node.variable._backward_hooks or type(node.variable.data) is not torch.Tensor:  # noqa: SLF001
                return []
            leaves.append(node.variable)
        below = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= below
        waiting += below
    return [each for each in leaves if each.layout is torch.strided]
