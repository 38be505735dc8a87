"""Finds one layer that stands at several places of a Sequential, ModuleList or ModuleDict.

The layers are compared at the end, so this costs a step nothing. A program may share a layer on
purpose. It hardly does so where an expression makes a new layer and repeats the result.
"""

from __future__ import annotations

import gc
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from halfstep.doctor.record.classes import file_of, repetition_of
from halfstep.doctor.record.sites import Site, is_of_user, site
from halfstep.doctor.record.source import statement
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tape.modules import unwrapped
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer

    from halfstep.doctor.signals.watched import Watched

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_LOOKED_AT = 3  # the step


@dataclass(frozen=True, slots=True)
class Repetition:
    """A layer that an optimizer trains, and that stands at several places of one container.

    Attributes:
        model: Class of the model.
        container: Path of the container in the model.
        layer: Class of the layer.
        count: Number of its places.
        parameters: Number of its parameters.
        made_by: The statement that makes the container.
        site: The line that repeats a new layer of this class.
    """

    model: str
    container: str
    layer: str
    count: int
    parameters: int
    made_by: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class Repetitions:
    """All such layers for which the program repeats a new layer."""

    signal: ClassVar[str] = "repetitions"
    layers: tuple[Repetition, ...] = ()


class RepeatedLayers(Signal):
    """Compares the layers of each container when the watch ends.

    A model that the loop uses by other methods than its call is looked for once, in the step in
    which it is known that an optimizer trains parameters of several modules.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._around: list[Repetition] = []

    def after_step(self, optimizer: Optimizer) -> None:
        """Look for the model around the modules that are called."""
        registry = self.watched.registry
        if registry.optimizer(optimizer).steps != _LOOKED_AT:
            return
        owned = {id(each) for each in registry.moved_by(optimizer)}
        known = [unwrapped(each) for each in registry.models.alive().values()]
        parts = {id(each) for each in known if not owned.isdisjoint(map(id, each.parameters()))}
        if len(parts) < 2 or any(owned <= {*map(id, each.parameters())} for each in known):
            return
        for each in gc.get_objects():
            if issubclass(type(each), nn.Module) and owned <= {*map(id, each.parameters())}:
                self._around += self._repeated(each, owned)

    def freeze(self) -> dict[str, Any]:
        """Return the repeated layers."""
        registry = self.watched.registry
        optimizers = registry.optimizers.alive().values()
        owned = {id(each) for one in optimizers for each in registry.moved_by(one)}
        models = map(unwrapped, registry.models.alive().values())
        repeated = [each for model in models for each in self._repeated(model, owned)]
        found = {each.site: each for each in (*self._around, *repeated)}
        return {Repetitions.signal: Repetitions(tuple(found.values()))}

    def _repeated(self, model: nn.Module, owned: set[int]) -> Iterator[Repetition]:
        for path, container in model.named_modules():
            if not isinstance(container, _CONTAINERS):
                continue
            layers = [*(container.values() if isinstance(container, nn.ModuleDict) else container)]
            for layer, count in Counter(layers).items():
                parameters = [*layer.parameters()] if count > 1 else []
                if not any(id(each) in owned for each in parameters):
                    continue
                mark = repetition_of(self._files(model, path), type(layer).__name__)
                if mark is not None:
                    yield Repetition(
                        model=type(model).__name__,
                        container=path,
                        layer=type(layer).__name__,
                        count=count,
                        parameters=sum(each.numel() for each in parameters),
                        made_by=statement(mark),
                        site=site(mark),
                    )

    def _files(self, model: nn.Module, path: str) -> list[str]:
        """Return the files that may make a container: those of the classes around it first."""
        names = path.split(".") if path else []
        around = [model.get_submodule(".".join(names[:n])) for n in range(len(names), -1, -1)]
        files = [file_of(type(each)) for each in around]
        files += [each.mark[0] for each in self.watched.registry.optimizers.notes if each.mark]
        return [each for each in dict.fromkeys(files) if each and is_of_user(each)]
