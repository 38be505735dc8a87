"""Frozen parts of a model whose dropout, or whose norms, are in training mode.

A frozen part has parameters, and none requires gradients or is written. Its outputs still change if
its norms move their running statistics, or if its dropout is on.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from halfstep.doctor.internals import drops_values, tracks_statistics
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.ledgers.followers import address
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.tape.modules import unwrapped
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.signals.watched import Watched

LAYERS = 512
_FEWEST = 2  # examined calls


@dataclass(frozen=True, slots=True)
class FrozenLayer:
    """A layer of a frozen part that was in training mode in training calls.

    Attributes:
        model: Class of the model.
        name: Its name in the model.
        kind: Its class.
        drops: Whether it drops values; otherwise, it tracks statistics.
        moved: How far its running means have moved, in standard deviations, at most.
        undone: The line that has set evaluation mode for a frozen part with this layer, before
            another one set training mode for more than this part; None without one.
        itself: Whether this part is the layer itself.
        evaluated: Whether the loop has called this part without gradients.
        through: The line that calls the model, if all of it is frozen: gradients only pass through
            it to its inputs; None otherwise.
    """

    model: str
    name: str
    kind: str
    drops: bool
    moved: float
    undone: Site | None
    itself: bool
    evaluated: bool
    through: Site | None = None


@dataclass(frozen=True, slots=True)
class FrozenLayers:
    """All such layers."""

    signal: ClassVar[str] = "frozen_parts"
    layers: tuple[FrozenLayer, ...] = ()


@dataclass(slots=True, eq=False)
class _Layer:
    model: str
    name: str
    module: weakref.ref[nn.Module]
    probe: weakref.ref[torch.Tensor]
    version: int
    address: int
    mean: torch.Tensor | None
    spread: torch.Tensor | None
    looks: int = 0
    trained: bool = False
    undone: Mark | None = None
    itself: bool = False
    evaluated: bool = False
    through: Mark | None = None

    def look(self) -> None:
        """Look whether the part has been trained since the first look."""
        probe = self.probe()
        self.looks += 1
        self.trained |= (
            probe is None
            or probe._version != self.version
            or address(probe) != self.address  # An assignment of `.data` keeps the version.
        )


class FrozenParts(Signal):
    """Follows the modes that the loop sets, and examines a few training calls."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._layers: dict[int, _Layer] = {}
        self._off: WeakKeyDictionary[nn.Module, Mark | None] = WeakKeyDictionary()
        self._undone: WeakKeyDictionary[nn.Module, Mark | None] = WeakKeyDictionary()
        self._evaluated: WeakSet[nn.Module] = WeakSet()
        self._switching = False

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of `train`, which `eval` calls, too."""
        yield Hook(nn.Module, "train", self.watched.here(self._on_train))

    def _on_train(self, original: Any, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if self._switching:  # Each submodule is switched, too.
            return original(module, *args, **kwargs)
        self._switching = True
        try:
            result = original(module, *args, **kwargs)
        finally:
            self._switching = False
        with self.watched.guard.own():
            self._switched(module)
        return result

    def _switched(self, module: nn.Module) -> None:
        if not module.training:
            self._off[module] = calling_line()
            return
        self._off.pop(module, None)
        self._undone.pop(module, None)
        if self._off:
            for each in set(module.modules()) & set(self._off):
                if each.training:
                    self._undone[each] = self._off.pop(each)

    def on_evaluation(self, module: nn.Module, mark: Mark | None) -> None:
        """Note a module that the loop calls without gradients."""
        del mark
        self._evaluated.add(module)

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Examine the layers of the model in some training calls."""
        del given
        notes = self.watched.registry.model(module)
        if not (notes.is_looked_at and notes.modes.is_training and torch.is_grad_enabled()):
            return
        if not any(each.requires_grad for each in made):
            return
        model = unwrapped(module)
        for name, layer in model.named_modules():
            if layer.training and (drops_values(layer) or tracks_statistics(layer)):
                part = _part_of(model, name)
                if part is not None:
                    known = self._examine(type(model).__name__, name, layer, part)
                    if known is not None and part is model:
                        known.through = known.through or calling_line()

    def _examine(self, model: str, name: str, layer: nn.Module, part: nn.Module) -> _Layer | None:
        known = self._layers.get(id(layer))
        if known is None or known.module() is not layer:
            if len(self._layers) >= LAYERS:
                return None
            weight = next(part.parameters())
            mean, spread = _statistics(layer)
            known = self._layers[id(layer)] = _Layer(
                model,
                name,
                weakref.ref(layer),
                weakref.ref(weight),
                weight._version,
                address(weight),
                mean,
                spread,
            )
        known.look()
        for each, mark in self._undone.items():
            inside = any(one is layer for one in each.modules())
            if inside and not any(one.requires_grad for one in each.parameters()):
                known.undone, known.itself = mark, each is layer
                known.evaluated |= each in self._evaluated
        return known

    def freeze(self) -> dict[str, Any]:
        """Return the layers; reads their running statistics."""
        found = []
        for known in self._layers.values():
            layer = known.module()
            # It may be the only training call that was examined after the part was frozen.
            if known.looks == 1 and layer is not None and not drops_values(layer):
                known.look()
            if layer is None or known.trained or known.looks < _FEWEST:
                continue
            found.append(
                FrozenLayer(
                    model=known.model,
                    name=known.name,
                    kind=type(layer).__name__,
                    drops=drops_values(layer),
                    moved=_distance(known, layer),
                    undone=site(known.undone),
                    itself=known.itself,
                    evaluated=known.evaluated,
                    through=site(known.through),
                )
            )
        return {FrozenLayers.signal: FrozenLayers(tuple(found))}


def _part_of(model: nn.Module, name: str) -> nn.Module | None:
    """Return the smallest part around a layer that has parameters, if all of them are frozen."""
    while name:
        name = name.rpartition(".")[0]
        part = model.get_submodule(name)
        parameters = list(part.parameters())
        if parameters:
            return None if any(each.requires_grad for each in parameters) else part
    return None


def _statistics(layer: nn.Module) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return copies of the running mean and standard deviation of a norm; None for others."""
    mean, variance = getattr(layer, "running_mean", None), getattr(layer, "running_var", None)
    if not (isinstance(mean, torch.Tensor) and isinstance(variance, torch.Tensor)):
        return None, None
    return mean.clone(), (variance + getattr(layer, "eps", 0.0)).sqrt()


def _distance(known: _Layer, layer: nn.Module) -> float:
    mean = getattr(layer, "running_mean", None)
    if known.mean is None or known.spread is None or not isinstance(mean, torch.Tensor):
        return 0.0
    if mean.device != known.mean.device or not mean.numel():
        return 0.0
    return float(((mean - known.mean).abs() / known.spread).max())
