"""Finds tensors of a module that require gradients and that the module has not registered.

`nn.Parameter(...).repeat(...)` returns a tensor that is no parameter: the module does not list it,
and the parameter behind it belongs to nothing. A module may also keep results of its last call in
its attributes; these are other tensors after the next call. So the attributes are noted once, in
the first call of a model, and compared at the end.
"""

from __future__ import annotations

import linecache
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from halfstep.doctor.record.classes import assignment_of, file_of
from halfstep.doctor.record.sites import Site, site
from halfstep.doctor.record.source import statement
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tape.modules import unwrapped
from halfstep.doctor.tensors.elements import some
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.signals.watched import Watched

_MOST = 64  # attributes
_NODES = 64  # of the graph of an attribute
_ELEMENTS = 64


@dataclass(frozen=True, slots=True)
class Attribute:
    """A tensor with gradients that a module keeps, but has not registered.

    Attributes:
        module: Class of the module.
        path: Path of the module in its model.
        name: Name of the attribute.
        shape: Shape of the tensor.
        made_by: The statement that assigns it; "" if unknown.
        is_leaf: Whether it is a tensor that the program made, not the result of an operator.
        is_parameter: Whether it, or the tensor it was computed from, is an `nn.Parameter`.
        site: The line that assigns it.
    """

    module: str
    path: str
    name: str
    shape: tuple[int, ...]
    made_by: str
    is_leaf: bool
    is_parameter: bool
    site: Site | None


@dataclass(frozen=True, slots=True)
class Attributes:
    """All such tensors that nothing has changed, and that no optimizer contains."""

    signal: ClassVar[str] = "attributes"
    tensors: tuple[Attribute, ...] = ()


@dataclass(slots=True)
class _Note:
    module: weakref.ref[nn.Module]
    path: str
    name: str
    tensor: weakref.ref[torch.Tensor]
    start: torch.Tensor


class UnregisteredTensors(Signal):
    """Notes the tensors in the attributes of each model in its first call."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._notes: list[_Note] = []

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Note the attributes of a model's modules in its first call."""
        del given, made
        if module in self._known:
            return
        self._known.add(module)
        for path, each in unwrapped(module).named_modules():
            for name, value in vars(each).items():
                if _gets_gradients(value) and len(self._notes) < _MOST:
                    references = weakref.ref(each), path, name, weakref.ref(value)
                    self._notes.append(_Note(*references, some(value, _ELEMENTS).clone()))

    def freeze(self) -> dict[str, Any]:
        """Return the attributes that are still the same tensors."""
        registry = self.watched.registry
        optimizers = registry.optimizers.alive().values()
        known = {id(each) for one in optimizers for each in registry.moved_by(one)}
        models = registry.models.alive().values()
        known |= {id(each) for model in models for each in model.parameters()}
        found = dict(self._kept(known))
        return {Attributes.signal: Attributes(tuple(found.values()))}

    def _kept(self, known: set[int]) -> Iterator[tuple[int, Attribute]]:
        for note in self._notes:
            module = note.module()
            tensor = vars(module).get(note.name) if module is not None else None
            if not isinstance(tensor, torch.Tensor) or tensor is not note.tensor():
                continue
            leaves = list(_leaves(tensor))
            lost = leaves and not any(id(each) in known for each in leaves)
            if not lost or all(each.grad is None for each in leaves):
                continue
            if not torch.equal(note.start, some(tensor, _ELEMENTS)):
                continue  # The loop updates it by itself.
            is_parameter = any(isinstance(each, nn.Parameter) for each in leaves)
            if not is_parameter and _differentiates(type(module)):
                continue  # It may be an input, by which the program differentiates.
            mark = assignment_of(type(module), note.name)
            yield (
                id(tensor),
                Attribute(
                    module=type(module).__name__,
                    path=note.path,
                    name=note.name,
                    shape=tuple(tensor.shape),
                    made_by=statement(mark),
                    is_leaf=tensor.is_leaf,
                    is_parameter=is_parameter,
                    site=site(mark),
                ),
            )


def _leaves(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors from which a tensor was computed, and which get gradients."""
    if tensor.grad_fn is None:
        yield tensor
        return
    waiting: list[Any] = [tensor.grad_fn]
    for _ in range(_NODES):
        if not waiting:
            return
        node = waiting.pop()
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [below for below, _ in node.next_functions if below is not None]


def _gets_gradients(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return value.requires_grad and value.layout is torch.strided


def _differentiates(kind: type) -> bool:
    """Return whether the file of a class, if it is known, computes derivatives by itself."""
    lines = linecache.getlines(file_of(kind))
    return not lines or any("autograd" in each or "torch.func" in each for each in lines)
