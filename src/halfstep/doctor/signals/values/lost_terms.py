"""Terms that the loop adds to a loss, and that have lost their gradients before.

In sampled steps, results without gradients are followed that the loop computes from tensors in an
autograd graph, from parameters, or with a trainable model under `torch.no_grad()`. Such a result is
a lost term if it is added to a scalar on which the loop then calls backward.

So is a number that the loop reads from such a tensor. Which number of a sum it is shows in its
values: in several steps it is the same multiple of what was read, and what was read changes. And a
number that changes, and is added to the loss itself after NumPy has got such a tensor, is NumPy's,
as is a result that is computed from an array of such a step.

And so is a distance of equal results that nothing trainable computes, see `tensors/distances.py`.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from math import isclose, isfinite
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from halfstep.doctor.internals import is_functorch_tensor, node_number
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tensors.distances import DISTANCES, are_comparable, distance
from halfstep.doctor.tensors.nesting import is_in_graph, tensors_in
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_SUMS = frozenset(
    {"add", "sub", "rsub", "add_", "sub_", "__add__", "__radd__", "__iadd__", "__sub__", "__isub__"}
)
_ADDS = frozenset({"AddBackward0", "SubBackward0", "RsubBackward1", "ToCopyBackward0"})
_LEAVES = frozenset({"numpy", "__array__", "tolist"})
_COMES_BACK = frozenset({"as_tensor", "asarray", "tensor"})
_FORGETS = frozenset({"zeros_like", "ones_like", "empty_like", "full_like", "new_zeros"})
_MOST_DISTANCES = 8  # of a line
_NODES = 64
_RESULTS = 256
_FEWEST = 2  # steps
_READ = 64  # numbers in a step
_PASSED = 256
_FEWEST_NUMBERS = 3  # steps
_ROUNDING = 1e-5


@dataclass(frozen=True, slots=True)
class LostLine:
    """A line at which terms lose their gradients.

    Attributes:
        how: "number", "numpy", "detach", "no_grad", "create_graph", "equal" for a distance of equal
            results, or the function whose result has no
            gradients.
        count: Number of sampled steps with such a term.
        examined: Number of sampled steps with a backward pass of the same line.
        site: The line.
    """

    how: str
    count: int
    examined: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class LostLines:
    """All such lines."""

    signal: ClassVar[str] = "lost_terms"
    lines: tuple[LostLine, ...] = ()


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where a result lost its gradients: how, by which line, and the graph before it."""

    how: str
    mark: Mark | None
    nodes: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Read:
    """A number that the loop has read: its line, its value, and the node of its tensor."""

    mark: Mark | None
    value: float
    node: Any


class Losing(Signal):
    """Follows results that have lost their gradients."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._steps = 1
        self._on = True
        self._examined: Counter[Mark | None] = Counter()
        self._cuts: dict[int, tuple[weakref.ref[torch.Tensor], _Cut]] = {}
        self._sums: list[tuple[Any, _Cut]] = []
        self._models, self._trained = 0, set[int]()
        self._lines: Counter[tuple[str, Mark | None, Mark | None]] = Counter()
        self._reads: list[_Read] = []
        self._added: list[tuple[Any, Mark | None, float]] = []
        self._left: Mark | None = None  # the line that has given NumPy a tensor in this step
        self._foreign: list[tuple[Any, Mark | None, float]] = []  # the sum, this line, the number
        self._outside: dict[Mark | None, list[float]] = {}
        self._numbers: dict[tuple[Mark | None, Mark | None], list[tuple[float, float]]] = {}
        self._trains: set[Mark | None] = set()  # lines whose numbers have a backward of their own
        self._distances: dict[Mark | None, list[torch.Tensor]] = {}
        self._passed: deque[tuple[int, str]] = deque(maxlen=_PASSED)  # nodes of backward passes

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the function that makes tensors of arrays, which overrides no call."""
        yield Hook(torch, "from_numpy", self.watched.in_loop(self._from_numpy))

    def _from_numpy(self, original: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
        made = original(*args)
        with self.watched.guard.own():
            self._comes_back(made)
        return made

    def _comes_back(self, made: torch.Tensor) -> None:
        """Follow a tensor that is made of what NumPy or Python has computed in this step."""
        if self._on and self._left is not None and made.is_floating_point():
            self._remember([made], _Cut("numpy", self._left, ()))

    def on_call(self, heard: Heard) -> None:
        """Follow results of the loop's calls."""
        if not self._on or (heard.name in DISTANCES and self._compares(heard)):
            return
        if heard.module is not None:
            return
        result = heard.result
        if heard.name in _LEAVES and any(map(self._cut, heard.given)):
            self._left = calling_line()
        if isinstance(result, torch.Tensor) and result.requires_grad:
            if (self._cuts or self._reads) and result.numel() == 1 and heard.name in _SUMS:
                self._add(result, heard.given)
                self._add_number(result, heard.call.args)
        elif heard.name not in _FORGETS:
            self._follow(heard)

    def on_read(self, tensor: torch.Tensor) -> None:
        """Note a number that the loop reads, as the loop waits for it anyway."""
        if not self._on or len(self._reads) >= _READ or tensor.numel() != 1:
            return
        if is_in_graph(tensor) and tensor.is_floating_point():
            value = float(tensor.detach())
            if _key(tensor.grad_fn) in self._passed:
                self._trains.add(calling_line())
            elif value and isfinite(value):
                self._reads.append(_Read(calling_line(), value, tensor.grad_fn))

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Follow the results of a trainable model without gradients, and of a loss of such ones."""
        if not self._on:
            return
        if torch.is_grad_enabled():
            for cut in filter(None, map(self._cut, given)):
                self._remember(made, cut)
            return
        if not module.training:
            return
        if any(each.requires_grad for each in module.parameters()):
            self._remember(made, _Cut("no_grad", calling_line(), ()))

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Look up the terms in the sums of the losses."""
        roots = [each.grad_fn for each in losses if each.grad_fn is not None]
        self._passed.extend(map(_key, _graph(roots) if self._on else roots))
        if self._on:
            reached = {*_graph(roots)} if self._sums else set()
            found = {(cut.how, cut.mark) for node, cut in self._sums if node in reached}
            mark = calling_line()
            self._lines.update((how, at, mark) for how, at in found)
            self._examined[mark] += 1
            if self._reads:
                self._compare({*_graph(roots)})
            sums = {*_graph(roots, _ADDS)} if self._foreign else set()
            for node, left, number in self._foreign:
                if node in sums:
                    self._outside.setdefault(left, []).append(number)
            self._cuts, self._sums, self._models = {}, [], 0
            self._reads, self._added = [], []
            self._left, self._foreign = None, []
        self._steps += 1
        # Two passes in a row: those of two losses may alternate.
        self._on = is_sampled(self._steps) or is_sampled(self._steps - 1)

    def _add_number(self, result: torch.Tensor, args: Sequence[Any]) -> None:
        numbers = [each for each in args[:2] if isinstance(each, float | np.floating) and each]
        if self._left is not None and numbers:
            self._foreign.append((result.grad_fn, self._left, float(numbers[0])))
        if self._reads and numbers and isinstance(numbers[0], float):
            self._added.append((result.grad_fn, calling_line(), numbers[0]))

    def _compare(self, reached: set[Any]) -> None:
        """Note, for each number that a loss adds, what was read before."""
        self._trains |= {each.mark for each in self._reads if each.node in reached}
        for node, mark, number in self._added:
            if node in reached:
                for each in self._reads:
                    pairs = self._numbers.setdefault((each.mark, mark), [])
                    pairs.append((each.value, number))

    def _follow(self, heard: Heard) -> None:
        made = tensors_in(heard.result)
        if not made:
            return
        if heard.name in _COMES_BACK:
            self._comes_back(made[0])
            return
        if any(isinstance(each, int | float) and not each for each in heard.call.args):
            return  # multiplied by 0, to use parameters that have no part in the loss
        cuts = [cut for each in heard.given if (cut := self._cut(each))]
        known = next((cut for cut in cuts if cut.how != "equal"), None)
        if known is None:
            graph = [each for each in heard.given if is_in_graph(each)]
            if graph or any(map(self._is_trained, heard.given)):
                nodes = tuple(each.grad_fn for each in graph)
                known = _Cut(_how(heard, made), calling_line(), nodes)
            elif cuts:
                known = cuts[0]
            else:
                return
        self._remember(made, known)

    def _compares(self, heard: Heard) -> bool:
        """Note a distance between results that nothing trainable computes."""
        given, result = heard.given[:2], heard.result
        if len(given) != 2 or not torch.is_grad_enabled() or not isinstance(result, torch.Tensor):
            return False
        if result.requires_grad or any(map(self._cut, given)) or not are_comparable(*given):
            return False
        if any(map(self._is_parameter, given)):  # Frozen ones stay where they were.
            return False
        mark = calling_line()
        found = self._distances.setdefault(mark, [])
        if len(found) < _MOST_DISTANCES:
            found.append(distance(*given))
        self._remember([result], _Cut("equal", mark, ()))
        return True

    def _is_parameter(self, tensor: torch.Tensor) -> bool:
        models = self.watched.registry.models.alive().values()
        keys = {each.data_ptr() for model in models for each in model.parameters()}
        return isinstance(tensor, nn.Parameter) or tensor.data_ptr() in keys

    def _is_trained(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a trainable parameter, or the data of one."""
        if isinstance(tensor, nn.Parameter):
            return tensor.requires_grad
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            return False
        if is_functorch_tensor(tensor) or not tensor.is_floating_point():
            return False
        models = self.watched.registry.models.alive()
        if len(models) != self._models:
            self._models = len(models)
            parameters = [each for model in models.values() for each in model.parameters()]
            self._trained = {each.data_ptr() for each in parameters if each.requires_grad}
        return tensor.data_ptr() in self._trained

    def _remember(self, made: Iterable[torch.Tensor], cut: _Cut) -> None:
        for each in made:
            if len(self._cuts) < _RESULTS and not each.requires_grad:
                self._cuts[id(each)] = weakref.ref(each), cut

    def _cut(self, tensor: torch.Tensor) -> _Cut | None:
        known = self._cuts.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _add(self, result: torch.Tensor, given: Sequence[torch.Tensor]) -> None:
        with_gradient = [each for each in given if each.requires_grad]
        for each in given:
            cut = self._cut(each)
            if cut is None or each.numel() != 1 or not with_gradient:
                continue
            # loss + (other - loss).detach() replaces the value of a loss, not its gradient.
            if cut.how == "detach" and with_gradient[0].grad_fn in {*_graph(cut.nodes)}:
                continue
            self._sums.append((result.grad_fn, cut))

    def freeze(self) -> dict[str, Any]:
        """Return the lines."""
        lines = tuple(
            LostLine(how, count, self._examined[backward], site(mark))
            for (how, mark, backward), count in self._lines.items()
            if count >= _FEWEST and (how != "equal" or self._are_equal(mark))
        )
        lines += tuple(
            LostLine("number", len(pairs), len(pairs), site(mark))
            for (mark, _), pairs in self._numbers.items()
            if mark not in self._trains and _are_multiples(pairs)
        )
        lines += tuple(
            LostLine("numpy", len(numbers), len(numbers), site(mark))
            for mark, numbers in self._outside.items()
            if len({*numbers}) >= _FEWEST_NUMBERS
        )
        return {LostLines.signal: LostLines(lines)}

    def _are_equal(self, mark: Mark | None) -> bool:
        """Return whether all results that a line has compared were equal; reads the distances."""
        numbers = [each.tolist() for each in self._distances[mark]]
        return all(size > 0 and apart <= _ROUNDING * size for apart, size in numbers)


def _key(node: Any) -> tuple[int, str]:
    """Return what tells a node: numbers count anew in each thread that makes nodes."""
    return node_number(node), type(node).__name__


def _are_multiples(pairs: Sequence[tuple[float, float]]) -> bool:
    """Return whether numbers are one multiple of what was read, which changes."""
    if len({value for value, _ in pairs}) < _FEWEST_NUMBERS:
        return False
    ratio = pairs[0][1] / pairs[0][0]
    return all(isclose(ratio * value, number, rel_tol=_ROUNDING) for value, number in pairs)


def _how(heard: Heard, made: Sequence[torch.Tensor]) -> str:
    if heard.call.function is torch.autograd.grad:
        return "create_graph"
    if not made[0].is_floating_point():
        return heard.name
    return "detach" if torch.is_grad_enabled() else "no_grad"


def _graph(nodes: Iterable[Any], through: frozenset[str] = frozenset()) -> Iterator[Any]:
    """Yield the nodes near the roots of a graph, or those behind nodes of some kinds alone."""
    waiting = [*nodes]
    seen = set(waiting)
    while waiting and len(seen) < _NODES:
        node = waiting.pop(0)
        yield node
        if through and type(node).__name__ not in through:
            continue
        below = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= below
        waiting += below
