"""Finds models that the loop calls without gradients, and whose results training uses.

Results are followed by their storage, from the call under `no_grad` through calls of the loop to a
call that has gradients. Nothing is kept alive.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.internals import (
    drops_values,
    is_functorch_tensor,
    storage_number,
    tracks_statistics,
    version_of,
    weak_storage,
)
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tape.modules import unwrapped
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import nn
    from torch.multiprocessing.reductions import StorageWeakRef

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_RESULTS = 32
_NAMES = 64


@dataclass(frozen=True, slots=True)
class Feature:
    """A model whose results are computed without gradients, and are used in training.

    Attributes:
        kind: Class of the model.
        without: Names of its trainable parameters that never had a gradient.
        count: Number of calls whose results were used so.
        evaluating: Whether the model was in evaluation mode.
        layers: Classes of its layers that depend on the mode, if they were in training mode.
        still: Whether nothing changed its parameters between the first call and the last one.
        taught: Whether a state was loaded into it, or an optimizer has trained it.
        trains: Whether it is also called with gradients.
        site: The line that calls the model.
    """

    kind: str
    without: tuple[str, ...]
    count: int
    evaluating: bool
    layers: tuple[str, ...]
    still: bool
    taught: bool
    trains: bool
    site: Site | None


@dataclass(frozen=True, slots=True)
class Features:
    """All such models."""

    signal: ClassVar[str] = "features"
    models: tuple[Feature, ...] = ()


@dataclass(slots=True)
class _Source:
    """A model that is called without gradients."""

    model: weakref.ref[nn.Module]
    mark: Mark | None
    evaluating: bool
    layers: tuple[str, ...]
    version: int
    count: int = 0
    trains: bool = False


class Following(Signal):
    """Follows the results of calls without gradients into calls with gradients."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._sources: dict[int, _Source] = {}
        self._results: dict[int, tuple[StorageWeakRef, _Source]] = {}

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Remember the results of a call without gradients, or find them among the inputs."""
        if torch.is_grad_enabled():
            self._use(given)
            known = self._sources.get(id(module))
            if known is not None and known.model() is module:
                known.trains |= any(each.requires_grad for each in made)
            return
        source = self._sources.get(id(module))
        if source is None or source.model() is not module:
            source = _Source(
                weakref.ref(module),
                calling_line(),
                not module.training,
                _layers(module),
                version_of(*module.parameters()),
            )
            self._sources[id(module)] = source
        for each in made:
            self._remember(each, source)

    def on_call(self, heard: Heard) -> None:
        """Follow the results through a call of the loop."""
        if not self._results or not isinstance(heard.result, torch.Tensor):
            return
        if heard.result.requires_grad:
            self._use(heard.given)
        else:
            for source in list(self._among(heard.given)):
                self._remember(heard.result, source)

    def _remember(self, tensor: torch.Tensor, source: _Source) -> None:
        if _has_storage(tensor) and tensor.is_floating_point():
            self._results[storage_number(tensor)] = weak_storage(tensor), source
            if len(self._results) > _RESULTS:
                del self._results[next(iter(self._results))]

    def _among(self, tensors: Iterable[torch.Tensor]) -> Iterator[_Source]:
        for each in tensors:
            if self._results and _has_storage(each) and not each.requires_grad:
                storage, source = self._results.get(storage_number(each), (None, None))
                if storage is not None and source is not None and not storage.expired():
                    yield source

    def _use(self, tensors: Iterable[torch.Tensor]) -> None:
        for source in self._among(tensors):
            source.count += 1

    def freeze(self) -> dict[str, Any]:
        """Return the models whose results were used in training."""
        return {Features.signal: Features(tuple(self._models()))}

    def _models(self) -> Iterator[Feature]:
        registry = self.watched.registry
        loaded = registry.loaded
        names = {id(each): name for name, each in registry.names().items()}
        for source in self._sources.values():
            model = source.model()
            if model is None or not source.count:
                continue
            without = [
                names.get(id(each), "")
                for each in model.parameters()
                if each.requires_grad and not registry.had_gradient(each)
            ]
            yield Feature(
                kind=type(unwrapped(model)).__name__,
                without=tuple(without[:_NAMES]),
                count=source.count,
                evaluating=source.evaluating,
                layers=source.layers,
                still=source.version == version_of(*model.parameters()),
                taught=self.watched.registry.model(model).has_trained
                or any(each in loaded for each in model.modules()),
                trains=source.trains,
                site=site(source.mark),
            )


def _layers(model: nn.Module) -> tuple[str, ...]:
    """Return the classes of the layers in training mode that depend on the mode."""
    dependent = (each for each in model.modules() if drops_values(each) or tracks_statistics(each))
    return tuple(sorted({type(each).__name__ for each in dependent if each.training}))


def _has_storage(tensor: torch.Tensor) -> bool:
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    return plain and not (tensor.is_meta or is_functorch_tensor(tensor))
