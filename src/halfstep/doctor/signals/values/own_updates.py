"""Updates of half-precision weights by the loop itself, without an optimizer, that change nothing.

A weight is a parameter of a model, or a tensor for which the loop asks for the gradient. The loop
updates it in place, or computes a new tensor that takes its place: one that is assigned to its
`.data`, or for which the loop asks for the next gradient. An element lost its update if something
was added to it and it did not change. Where the loop subtracts the weights before and after an
update, it computes what the update has lost, and such a line does not count.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from halfstep.doctor.internals import is_functorch_tensor
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.ledgers.followers import address
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tensors.elements import some
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

ELEMENTS = 512
_WEIGHTS = 16
_LINES = 16
_CASTS = {"float", "double", "to"}
_SUBTRACTS = {"sub", "sub_", "subtract", "rsub", "__sub__", "__rsub__", "__isub__"}
_IN_PLACE = {
    *("add_", "sub_", "__iadd__", "__isub__", "addcmul_", "addcdiv_"),
    *("_foreach_add_", "_foreach_sub_", "_foreach_addcmul_", "_foreach_addcdiv_"),
}
_ANEW = {"add", "sub", "subtract", "__add__", "__sub__", "_foreach_add", "_foreach_sub"}


@dataclass(frozen=True, slots=True)
class OwnUpdate:
    """A line that updates half-precision weights.

    Attributes:
        format: The half format.
        updates: Number of updates in this line.
        shares: The share of elements, of those to which something was added, that did not change,
            in each examined update.
        site: The line.
    """

    format: str
    updates: int
    shares: tuple[float, ...]
    site: Site | None


@dataclass(frozen=True, slots=True)
class OwnUpdates:
    """All such lines."""

    signal: ClassVar[str] = "own updates"
    lines: tuple[OwnUpdate, ...] = ()


@dataclass(slots=True)
class _Line:
    """The updates in a line: how many elements each has lost, of how many."""

    format: str
    updates: int = 0
    counts: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    compensates: bool = False


@dataclass(slots=True)
class _Anew:
    """A tensor that may take the place of a weight; it must live while its address is compared."""

    mark: Mark | None
    tensor: torch.Tensor
    counts: tuple[torch.Tensor, torch.Tensor] | None


class OwnUpdateSignal(Signal):
    """Examines how the loop changes half-precision weights that no optimizer updates."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._weights: set[int] = set()  # addresses
        self._is_due = True
        self._before: dict[int, torch.Tensor | None] = {}  # None for a write not to be examined
        self._written: dict[int, Mark | None] = {}  # weights since the last gradients
        self._anew: dict[int, _Anew] = {}
        self._lines: dict[Mark | None, _Line] = {}
        self.given: dict[tuple[int, ...], list[tuple[str, int, torch.Tensor]]] = {}

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the transforms that make functions of gradients."""
        for name in ("grad", "grad_and_value"):
            yield Hook(torch.func, name, self.watched.in_loop(self._transforms))

    def _transforms(
        self, original: Any, function: Any, argnums: Any = 0, has_aux: Any = False
    ) -> Any:
        differentiates = original(function, argnums, has_aux)
        numbers = argnums if isinstance(argnums, tuple) else (argnums,)

        def call(*args: Any, **named: Any) -> Any:
            if not torch.compiler.is_compiling() and self.watched.is_in_loop():
                with self.watched.guard.own():
                    self._take(tensors_in([args[each] for each in numbers if each < len(args)]))
            return differentiates(*args, **named)

        return call

    # ------------------------------------------------------------ which tensors are weights

    def on_gradient(self, tensor: torch.Tensor) -> None:
        """Note a leaf whose gradient the loop reads."""
        if tensor.is_leaf and tensor.requires_grad:
            self._confirm([tensor])

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Look at the models' parameters again: a backward pass begins a new step."""
        del losses
        self._next()

    def _take(self, weights: list[torch.Tensor]) -> None:
        """Note tensors for which the loop asks for gradients."""
        self._next()
        plain = [each for each in weights if not is_functorch_tensor(each) and _is_weight(each)]
        self._confirm(plain)
        self.given.clear()
        own = [each for each in plain if not isinstance(each, nn.Parameter)]
        for number, each in enumerate(own[:_WEIGHTS]):
            noted = f"weight {number}", address(each), some(each, ELEMENTS).float()
            self.given.setdefault(tuple(each.shape), []).append(noted)

    def _next(self) -> None:
        self._is_due = True
        self._written.clear()

    def _confirm(self, weights: Sequence[torch.Tensor]) -> None:
        """Count the updates that made these weights."""
        for each in weights:
            key = address(each)
            anew = self._anew.pop(key, None)
            if anew is not None:
                self._count(anew.mark, each.dtype, anew.counts)
            if each.dtype in HALVES and key:
                self._weights.add(key)

    def _is_ours(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a weight in half precision, without an optimizer."""
        if tensor.dtype not in HALVES or is_functorch_tensor(tensor):
            return False
        if self._is_due:
            self._is_due = False
            registry = self.watched.registry
            models = registry.models.alive().values()
            mine = [each for model in models for each in model.parameters() if each.requires_grad]
            optimizers = registry.optimizers.alive().values()
            owned = {address(each) for one in optimizers for each in parameters_of(one)}
            self._weights |= {address(each) for each in mine if each.dtype in HALVES}
            self._weights -= owned
        return address(tensor) in self._weights

    # ------------------------------------------------------------ what changes them

    def before_write(
        self, name: str, written: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Keep a few elements of weights that are about to be written."""
        if name == "data":
            if any(map(self._is_ours, written)):
                self._confirm([each for each in values if _is_weight(each)])
            return
        self._before.clear()
        if name in _IN_PLACE and written and written[0].dtype in HALVES:
            is_due = self._is_due_in(calling_line())
            for each in [each for each in written if self._is_ours(each)][:_WEIGHTS]:
                self._before[address(each)] = some(each, ELEMENTS).clone() if is_due else None

    def _is_due_in(self, mark: Mark | None) -> bool:
        """Return whether the next update in a line is examined."""
        return mark not in self._lines or is_sampled(self._lines[mark].updates + 1)

    def on_call(self, heard: Heard) -> None:
        """Examine an addition to weights."""
        name, args = heard.name, heard.call.args
        if name == "grad" and heard.call.function is torch.autograd.grad:
            self._take(tensors_in(args[1:2] or heard.call.kwargs.get("inputs")))
            return
        if self._written and name in _CASTS and isinstance(heard.result, torch.Tensor):
            mark = self._written.get(address(heard.given[0])) if heard.given else None
            if mark is not None:
                self._written[address(heard.result)] = mark
        if name in _SUBTRACTS and (self._written or self._anew):
            self._compensate(heard.given)
        if not heard.halves:
            return
        if name in _IN_PLACE and self._before and _factor(heard.call.kwargs):
            mark, written = calling_line(), tensors_in(args[:1])
            for tensor, addend in zip(written, tensors_in(args[1:2]), strict=False):
                key = address(tensor)
                if key in self._before and addend.shape == tensor.shape:
                    self._written[key] = mark
                    before = self._before[key]
                    counts = None if before is None else _lost(before, tensor, addend)
                    self._count(mark, tensor.dtype, counts)
        elif name in _ANEW and _factor(heard.call.kwargs) and len(args) > 1:
            self._note_anew(tensors_in(args[0]), tensors_in(args[1]), tensors_in(heard.result))
        self._before.clear()

    def _note_anew(
        self,
        old: list[torch.Tensor],
        addends: list[torch.Tensor],
        results: list[torch.Tensor],
    ) -> None:
        mark = calling_line()
        is_due = self._is_due_in(mark)
        for before, addend, result in zip(old, addends, results, strict=False):
            if len(self._anew) >= _WEIGHTS:
                self._anew.pop(next(iter(self._anew)))
            is_sum = before.shape == addend.shape == result.shape and result.dtype == before.dtype
            if is_sum and not addend.requires_grad and self._is_ours(before):
                counts = _lost(before, result, addend) if is_due else None
                self._anew[address(result)] = _Anew(mark, result.detach(), counts)

    def _compensate(self, given: list[torch.Tensor]) -> None:
        """Note the lines that have made or written these tensors: what they lose is known."""
        for key in map(address, given):
            if key in self._written or key in self._anew:
                mark = self._written[key] if key in self._written else self._anew[key].mark
                if mark in self._lines:
                    self._lines[mark].compensates = True
                self._anew.pop(key, None)

    def _count(
        self,
        mark: Mark | None,
        dtype: torch.dtype,
        counts: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> None:
        if mark not in self._lines and len(self._lines) >= _LINES:
            return
        line = self._lines.setdefault(mark, _Line(format_name(dtype)))
        line.updates += 1
        if counts is not None:
            line.counts.append(counts)

    def freeze(self) -> dict[str, Any]:
        """Return the lines that do not compensate for rounding; reads the counts."""
        found = []
        for mark, line in self._lines.items():
            shares = [int(lost) / int(added) for lost, added in line.counts if int(added)]
            if shares and not line.compensates:
                found.append(OwnUpdate(line.format, line.updates, tuple(shares), site(mark)))
        return {OwnUpdates.signal: OwnUpdates(tuple(found))}


def _is_weight(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 1 and address(tensor) != 0


def _factor(kwargs: dict[str, Any]) -> bool:
    """Return whether an addition adds something, as far as a number says."""
    return all(kwargs.get(name, 1) != 0 for name in ("alpha", "value"))


def _lost(
    before: torch.Tensor, after: torch.Tensor, addend: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how many elements did not change although something was added, and to how many."""
    old, new = some(before, ELEMENTS), some(after, ELEMENTS)
    added = some(addend, ELEMENTS) != 0
    return ((old == new) & added).sum(), added.sum()
