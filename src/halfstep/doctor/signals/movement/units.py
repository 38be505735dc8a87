"""Trained parameters whose rows are all equal at the end, so that their units are copies.

Units of a layer that begin with equal weights get equal gradients, unless dropout or noise tells
them apart. Two factors of a product that are both zero have no gradients at all. In a long
training, an adaptive optimizer may enlarge what rounding adds to equal gradients, until the rows
differ; so the rows are compared before the first steps, too.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.tensors.local import local
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer

    from halfstep.doctor.record.sites import Mark
    from halfstep.doctor.signals.watched import Watched

ELEMENTS = 2**26  # in all; parameters beyond are not read
ROWS = 3  # fewer may be equal by chance, such as those of two classes
_NEAR = 1e-5  # of the largest element
_FIRST = 8  # rows that are compared before all are
_STEPS = 3  # the first ones, before which gradients are compared
_ALIKE = 1e-4  # of the largest element of a gradient


@dataclass(frozen=True, slots=True)
class EqualRows:
    """A parameter with equal rows.

    Attributes:
        optimizer: Number of the optimizer that contains it.
        name: Its name.
        module: Name of the module that contains it; "" if unknown.
        rows: Number of its rows.
        size: Its largest element.
        feeds: Whether another module with trained parameters is registered after its own in the
            model, so that its units are hidden.
        split: Whether the rows were equal before the first steps only, with equal gradients.
    """

    optimizer: int
    name: str
    module: str
    rows: int
    size: float
    feeds: bool
    split: bool = False


@dataclass(frozen=True, slots=True)
class Units:
    """All such parameters."""

    signal: ClassVar[str] = "units"
    equal: tuple[EqualRows, ...] = ()


class UnitSignal(Signal):
    """Compares the rows of parameters before the first steps and at the end."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._began: dict[int, list[torch.Tensor]] = {}  # by number of the optimizer

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Find parameters whose rows, and the rows of their gradients, are equal at first."""
        del mark
        step = self.watched.registry.optimizer(optimizer).steps
        if step == 1:
            few = itertools.takewhile(_Budget(ELEMENTS), parameters_of(optimizer))
            self._began[number] = [each for each in few if _has_equal_rows(each)]
        if step <= _STEPS and self._began.get(number):
            mine = [each for each in self._began[number] if _has_equal_gradients(each)]
            self._began[number] = mine

    def freeze(self) -> dict[str, Any]:
        """Return the parameters with equal rows; reads the parameters of all optimizers."""
        return {Units.signal: Units(tuple(self._equal()))}

    def _equal(self) -> Iterator[EqualRows]:
        registry = self.watched.registry
        names = {id(each): name for name, each in registry.names().items()}
        places = _places(registry.models.alive().values())
        for number, optimizer in registry.optimizers.alive().items():
            if not registry.optimizer(optimizer).steps:
                continue
            began = set(map(id, self._began.get(number, ())))
            for each in itertools.takewhile(_Budget(ELEMENTS), parameters_of(optimizer)):
                mine = _matrix(each)
                if mine is None:
                    continue
                rows, split = _rows(mine), False
                if rows is None or not _are_equal(rows):
                    split = id(each) in began
                    if mine.any() and not split:
                        continue
                    if not split:
                        rows = mine.reshape(len(mine), -1)  # a factor may have few rows
                assert rows is not None
                module, feeds = places.get(id(each), ("", False))
                size = float(rows[0].abs().max()) if rows.numel() else 0.0
                name = names.get(id(each), "")
                yield EqualRows(number, name, module, len(rows), size, feeds, split)


class _Budget:
    """Says whether a parameter is among the first with so many elements in all."""

    def __init__(self, elements: int) -> None:
        self._left = elements

    def __call__(self, parameter: torch.Tensor) -> bool:
        self._left -= parameter.numel()
        return self._left >= 0


def _places(models: Any) -> dict[int, tuple[str, bool]]:
    """Return the module of each parameter, and whether another one follows; none for embeddings.

    The rows of an embedding are not used by each step, so equal ones may be those without use.
    """
    places: dict[int, tuple[str, bool]] = {}
    for model in models:
        owners = [
            (name, module)
            for name, module in model.named_modules()
            if any(each.requires_grad for each in module.parameters(recurse=False))
        ]
        for place, (name, module) in enumerate(owners):
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                continue
            for each in module.parameters(recurse=False):
                places.setdefault(id(each), (name, place + 1 < len(owners)))
    return places


def _matrix(parameter: torch.Tensor) -> torch.Tensor | None:
    if not parameter.requires_grad or not parameter.is_floating_point():
        return None
    mine = local(parameter).detach()
    return None if mine.ndim < 2 or mine.layout is not torch.strided or mine.is_meta else mine


def _has_equal_rows(parameter: torch.Tensor) -> bool:
    mine = _matrix(parameter)
    rows = None if mine is None else _rows(mine)
    return rows is not None and bool(rows[0].any()) and _are_equal(rows)


def _has_equal_gradients(parameter: torch.Tensor) -> bool:
    gradient = parameter.grad
    if gradient is None or gradient.layout is not torch.strided:
        return False
    rows = _rows(local(gradient).detach())
    return rows is not None and bool(rows[0].any()) and _are_equal(rows, _ALIKE)


def _rows(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a parameter as rows: one for each unit of a layer, or for each vector of a table."""
    while tensor.ndim > 2 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.ndim < 2 or tensor.shape[0] < ROWS or tensor[0].numel() < 2:
        return None
    return tensor.reshape(len(tensor), -1)


def _are_equal(rows: torch.Tensor, near: float = _NEAR) -> bool:
    def spread(some: torch.Tensor) -> bool:
        return bool(((some - some[:1]).abs() <= near * some[0].abs().max()).all())

    return spread(rows[:_FIRST]) and spread(rows)
