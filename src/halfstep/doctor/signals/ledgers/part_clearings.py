"""Modules whose gradients the loop clears between the backward passes of one step.

An optimizer may have several modules, such as a body with a head for each task. If the loop clears
the gradients of one of them before each backward pass of a line, a step uses only the last pass for
this module, and all of them for the others. Gradients that a step has used, and those with which
the loop has computed anything, do not count.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, ClassVar

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.gradients import probes
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from halfstep.doctor.record import Fact
    from halfstep.doctor.signals.watched import Watched

_MODULES = 16
_LINES = 16


@dataclass(frozen=True, slots=True)
class PartClearing:
    """A line that clears the gradients of a part of an optimizer's parameters.

    Attributes:
        optimizer: Number of the optimizer.
        count: Number of its steps after such a clearing, and another pass of the same line.
        steps: Number of its steps since the first clearing of a module.
        module: Class of the module.
        parameters: Number of the module's parameters.
        site: The line.
    """

    optimizer: int
    count: int
    steps: int
    module: str
    parameters: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class PartClearings:
    """All such lines."""

    signal: ClassVar[str] = "part clearings"
    lines: tuple[PartClearing, ...] = ()


@dataclass(slots=True, eq=False)
class _Found:
    """A clearing: the optimizer, its line, and the line of the pass whose gradients are gone."""

    optimizer: int
    mark: Mark | None
    dropped: Mark | None
    confirmed: bool = False


class ClearingParts(Signal):
    """Looks at the gradients of each module that the loop is about to clear."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._modules: dict[int, tuple[weakref.ref[nn.Module], list[torch.Tensor]]] = {}
        self._spent: dict[int, tuple[int, int]] = {}  # `id` and version of used gradients
        self._last: tuple[Mark | None, set[str]] | None = None  # the last backward since a step
        self._open: list[_Found] = []
        self._steps: dict[int, int] = {}
        self._counts: dict[tuple[int, Mark | None], list[Any]] = {}

    def before_clearing(self, module: nn.Module) -> None:
        """Compare the gradients of a module with what the last step has used."""
        known = self._modules.get(id(module))
        if known is None or known[0]() is not module:
            if len(self._modules) >= _MODULES:
                return
            known = self._modules[id(module)] = weakref.ref(module), probes([*module.parameters()])
        if self._last is None:
            return
        dropped, reached = self._last
        mine = {id(each) for each in known[1] if self._is_fresh(each)}
        whole = {*map(id, module.parameters())} if mine else set()
        for optimizer in self.watched.registry.optimizers.alive().values() if mine else ():
            number = self.watched.registry.optimizers.number(optimizer)
            state = self.watched.grammar.state(optimizer)
            rest = [each for each in state.probes if id(each) not in whole]
            if str(number) not in reached or state.examined or not mine & state.parameters:
                continue
            if any(each.grad is not None and self._is_fresh(each) for each in rest):
                mark = calling_line()
                self._open.append(_Found(number, mark, dropped))
                key = number, mark
                if key not in self._counts and len(self._counts) < _LINES:
                    self._counts[key] = [0, type(module).__name__, len(whole)]

    def _is_fresh(self, parameter: torch.Tensor) -> bool:
        gradient = parameter.grad
        return gradient is not None and self._spent.get(id(parameter)) != (
            id(gradient),
            gradient._version,
        )

    def on_event(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        """Follow the backward passes."""
        if kind == "backward" and self._modules:
            for each in self._open:
                each.confirmed |= each.dropped == mark
            self._last = mark, {*str(facts["reaches"]).split(",")}

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Count the clearings before a step, and note the gradients that it uses."""
        del mark
        if not self._modules:
            return
        self._steps[number] = self._steps.get(number, 0) + 1
        mine = {(each.optimizer, each.mark) for each in self._open if each.confirmed}
        for key in mine:
            if key[0] == number and key in self._counts:
                self._counts[key][0] += 1
        self._open = [each for each in self._open if each.optimizer != number]
        self._last = None
        parameters = [each for _, some in self._modules.values() for each in some]
        parameters += self.watched.grammar.state(optimizer).probes
        for each in parameters:
            gradient = each.grad
            self._spent[id(each)] = (
                (0, 0) if gradient is None else (id(gradient), gradient._version)
            )

    def freeze(self) -> dict[str, Any]:
        """Return the lines."""
        lines = tuple(
            PartClearing(number, count, self._steps.get(number, 0), kind, parameters, site(mark))
            for (number, mark), (count, kind, parameters) in self._counts.items()
            if count
        )
        return {PartClearings.signal: PartClearings(lines)}
