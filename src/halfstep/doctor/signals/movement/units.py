"""Trained parameters whose rows are all equal at the end, so that their units are copies.

Units of a layer that begin with equal weights get equal gradients, unless dropout or noise tells
them apart. Two factors of a product that are both zero have no gradients at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.tensors.local import local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.watched import Watched

ELEMENTS = 2**26  # in all; parameters beyond are not read
ROWS = 3  # fewer may be equal by chance, such as those of two classes
_NEAR = 1e-5  # of the largest element
_FIRST = 8  # rows that are compared before all are
_NAMES = 64


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
    """

    optimizer: int
    name: str
    module: str
    rows: int
    size: float
    feeds: bool


@dataclass(frozen=True, slots=True)
class Units:
    """All such parameters."""

    signal: ClassVar[str] = "units"
    equal: tuple[EqualRows, ...] = ()


class UnitSignal(Signal):
    """Compares the rows of parameters at the end."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)

    def freeze(self) -> dict[str, Any]:
        """Return the parameters with equal rows; reads the parameters of all optimizers."""
        return {Units.signal: Units(tuple(self._equal()))}

    def _equal(self) -> Iterator[EqualRows]:
        registry = self.watched.registry
        names = {id(each): name for name, each in registry.names().items()}
        places = _places(registry.models.alive().values())
        left = ELEMENTS
        for number, optimizer in registry.optimizers.alive().items():
            if not registry.optimizer(optimizer).steps:
                continue
            for each in parameters_of(optimizer):
                left -= each.numel()
                if left < 0 or not each.requires_grad or not each.is_floating_point():
                    continue
                mine = local(each).detach()
                if mine.ndim < 2 or mine.layout is not torch.strided or mine.is_meta:
                    continue
                rows = _rows(mine)
                if rows is None or not _are_equal(rows):
                    if mine.any():
                        continue
                    rows = mine.reshape(len(mine), -1)  # a factor may have few rows
                module, feeds = places.get(id(each), ("", False))
                size = float(rows[0].abs().max()) if rows.numel() else 0.0
                name = names.get(id(each), "")
                yield EqualRows(number, name, module, len(rows), size, feeds)


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


def _rows(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a parameter as rows: one for each unit of a layer, or for each vector of a table."""
    while tensor.ndim > 2 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.ndim < 2 or tensor.shape[0] < ROWS or tensor[0].numel() < 2:
        return None
    return tensor.reshape(len(tensor), -1)


def _are_equal(rows: torch.Tensor) -> bool:
    def spread(some: torch.Tensor) -> bool:
        return bool(((some - some[:1]).abs() <= _NEAR * some[0].abs().max()).all())

    return spread(rows[:_FIRST]) and spread(rows)
