"""The ledger of modes: in which mode the layers of a model ran that depend on it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from halfstep.doctor.internals import drops_values, modules_of, tracks_statistics
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.tape.modules import unwrapped
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.state.registry import ModelNotes
    from halfstep.doctor.signals.watched import Watched


@dataclass(frozen=True, slots=True)
class Again:
    """A line that has put a layer into training mode after another one had frozen it.

    Attributes:
        site: The line.
        path: The name of the layer in the module whose mode the line sets.
    """

    site: Site | None
    path: str


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that computes other results in evaluation mode.

    Attributes:
        name: Its name in the model.
        kind: Its class.
        drops: Whether it drops values in training mode; otherwise, it tracks statistics.
        training: Number of training calls of the model in which it was in training mode.
        evaluating: Number of training calls in which it was in evaluation mode.
        evaluated: Number of calls of the model without gradients, in evaluation mode.
        disturbed: Number of calls of the model without gradients in which it was in training mode.
        left: Whether it was in training mode in the first training calls, and never again later.
        is_training: Whether it is in training mode at the end.
        trained: Whether the smallest module around it with parameters has trainable ones.
        frozen: Whether it has parameters, and none requires gradients.
        undone: The line that has set evaluation mode for this layer alone, before another one set
            training mode again.
        earlier: Whether it had run in training mode in a training call before it was frozen.
        resumed: Whether it has run in training mode in a training call since it was undone.
        unused: Whether no model ran between both lines, so the first of them had no effect.
        again: The lines that have set training mode since then.
        fresh: Whether it is a norm whose running statistics are still the first ones.
    """

    name: str
    kind: str
    drops: bool
    training: int
    evaluating: int
    evaluated: int
    disturbed: int
    left: bool
    is_training: bool
    trained: bool
    frozen: bool
    fresh: bool
    undone: Site | None
    earlier: bool
    resumed: bool
    unused: bool = False
    again: tuple[Again, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelModes:
    """The modes of a model in the loop's calls.

    Attributes:
        number: Number of the model.
        kind: Its class.
        layers: The layers that depend on the mode.
        restored: How often a call in training mode was the first training call after an evaluation.
        left: How often it was a call in evaluation mode, although the model was trained before.
        left_after: The call of the evaluation before the first such call; None without one.
        evaluating: How often a training call was in evaluation mode.
        straight: How often such a call was the first training call after an evaluation.
        switched: Number of these evaluations for which the loop had set evaluation mode.
        straight_after: The call of the evaluation before the first such call; None without one.
        begins: Whether the first training call of all was such a call.
        disturbed: How often several calls without gradients in a row have updated the statistics of
            norms, before training went on.
        disturbed_by: The first of these calls.
        unset: Number of calls without gradients in training mode, which nothing has ever set or
            left, while another model with the same parameters was in evaluation mode.
        unset_by: The first of these calls.
        twin: Number of this other model; -1 without one.
    """

    number: int
    kind: str
    layers: tuple[Layer, ...]
    restored: int
    left: int
    left_after: Site | None
    evaluating: int
    straight: int
    switched: int
    straight_after: Site | None
    begins: bool
    disturbed: int
    disturbed_by: Site | None
    unset: int = 0
    unset_by: Site | None = None
    twin: int = -1

    @property
    def dropouts(self) -> list[str]:
        """Classes of the layers that drop values."""
        return sorted({each.kind for each in self.layers if each.drops})

    @property
    def norms(self) -> list[str]:
        """Classes of the norms that track statistics."""
        return sorted({each.kind for each in self.layers if not each.drops})


@dataclass(frozen=True, slots=True)
class ModeLedger:
    """The ledger, for each model with such layers."""

    signal: ClassVar[str] = "modes"
    models: tuple[ModelModes, ...] = ()


@dataclass(slots=True)
class _Undone:
    """The line that froze a layer, and the lines that have set training mode later.

    Attributes:
        mark: The line that froze it.
        frozen: Number of training calls of each model when it did so.
        ran: Number of calls of all models when it did so.
        calls: Number of training calls of each model when training mode was set.
        unused: Whether no model ran in between.
        lines: The lines that set it, with the name of the layer in the module that they switch.
    """

    mark: Mark | None
    frozen: tuple[int, ...]
    ran: int
    calls: tuple[int, ...]
    unused: bool
    lines: dict[Mark | None, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Unset:
    """Calls without gradients of a model whose mode nothing has set."""

    mark: Mark | None
    twin: int
    count: int = 0


class Switches(Signal):
    """Passes each call of `train` and `eval` on to the modes of the models that it concerns."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._frozen: WeakKeyDictionary[nn.Module, tuple[Mark | None, tuple[int, ...], int]]
        self._frozen = WeakKeyDictionary()
        self._undone: WeakKeyDictionary[nn.Module, _Undone] = WeakKeyDictionary()
        self._set: WeakSet[nn.Module] = WeakSet()  # by a call of their own
        self._unset: WeakKeyDictionary[nn.Module, _Unset] = WeakKeyDictionary()
        self._shapes: WeakKeyDictionary[nn.Module, tuple[torch.Size, ...]] = WeakKeyDictionary()

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of `train`, which `eval` calls, too."""
        yield Hook(nn.Module, "train", self.watched.in_loop(self._on_train))

    def _on_train(self, original: Any, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        with self.watched.guard.inside():  # Each submodule is switched, too.
            result = original(module, *args, **kwargs)
        with self.watched.guard.own():
            self._set.add(module)
            self.watched.registry.note_switch(module)
            if tracks_statistics(module) and not module.training:
                self._frozen[module] = calling_line(), self._calls(), self._ran()
                self._undone.pop(module, None)
            elif module.training and (self._frozen or self._undone):
                mark, ran = calling_line(), self._ran()
                for name, each in module.named_modules():
                    if each in self._frozen:
                        frozen = self._frozen.pop(each)
                        self._undone[each] = _Undone(*frozen, self._calls(), ran == frozen[-1])
                    if each in self._undone:
                        self._undone[each].lines[mark] = name
        return result

    def on_evaluation(self, module: nn.Module, mark: Mark | None) -> None:
        """Count a call in the mode of the construction, beside a model in evaluation mode."""
        models = self.watched.registry.models
        notes = self.watched.registry.model(module)
        if not module.training or not notes.modes.is_training or notes.modes.was_training:
            return
        if not self._set.isdisjoint(modules_of(module)):
            return
        for number, other in models.alive().items():
            modes = models.notes[number].modes
            if other.training or modes.is_training or not modes.was_training:
                continue
            if other in self._set and self._shape(other) == self._shape(module):
                self._unset.setdefault(module, _Unset(mark, number)).count += 1
                return

    def _shape(self, module: nn.Module) -> tuple[torch.Size, ...]:
        known = self._shapes.get(module)
        if known is None:
            shapes = tuple(each.shape for each in module.parameters())
            known = self._shapes[module] = shapes
        return known

    def _calls(self) -> tuple[int, ...]:
        return tuple(each.modes.calls for each in self.watched.registry.models.notes)

    def _ran(self) -> int:
        return sum(each.calls for each in self.watched.registry.models.notes)

    def freeze(self) -> dict[str, Any]:
        """Return the ledger."""
        models = self.watched.registry.models
        alive = models.alive()
        unset = {each: self._unset.get(model) for each, model in alive.items()}
        found = [
            ModelModes(
                number=number,
                kind=notes.facts.kind,
                layers=tuple(self._layers(number, notes, alive.get(number))),
                restored=notes.modes.restored,
                left=notes.modes.left,
                left_after=site(notes.modes.left_after),
                evaluating=notes.modes.evaluating,
                straight=notes.modes.straight,
                switched=notes.modes.switched,
                straight_after=site(notes.modes.straight_after),
                begins=notes.modes.begins,
                disturbed=notes.modes.disturbed,
                disturbed_by=site(notes.modes.disturbed_by),
                unset=its.count if (its := unset.get(number)) else 0,
                unset_by=site(its.mark) if its else None,
                twin=its.twin if its else -1,
            )
            for number, notes in enumerate(models.notes)
            if notes.modes.dependent
        ]
        return {ModeLedger.signal: ModeLedger(tuple(found))}

    def _layers(self, number: int, notes: ModelNotes, model: nn.Module | None) -> Iterator[Layer]:
        known, registry = notes.modes, self.watched.registry
        optimizers = registry.optimizers.alive()
        mine = [optimizers[each] for each in notes.optimizers if each in optimizers]
        owned = {id(each) for one in mine for each in registry.moved_by(one)}
        named = unwrapped(model).named_modules() if model is not None else ()
        names = {id(module): name for name, module in named}
        order = {key: place for place, key in enumerate(names)}
        layers = sorted(enumerate(known.dependent), key=lambda each: order.get(id(each[1]), 0))
        for place, module in layers:
            parameters = list(module.parameters(recurse=False))
            inside = [
                (modes[place], *its) for modes, its in known.trained.items() if place < len(modes)
            ]
            tested = [(modes[place], n) for modes, n in known.tested.items() if place < len(modes)]
            last = max((end for mode, _, _, end in inside if mode), default=0)
            first = min((start for mode, _, start, _ in inside if not mode), default=0)
            undone = self._undone.get(module)
            began = min((start for mode, _, start, _ in inside if mode), default=0)
            yield Layer(
                name=names.get(id(module), ""),
                kind=type(module).__name__,
                drops=drops_values(module),
                training=sum(count for mode, count, _, _ in inside if mode),
                evaluating=sum(count for mode, count, _, _ in inside if not mode),
                evaluated=sum(count for mode, count in tested if not mode),
                disturbed=sum(count for mode, count in tested if mode),
                left=0 < last < first,
                is_training=module.training,
                trained=self._is_trained(model, names.get(id(module), ""), owned),
                frozen=bool(parameters) and not any(each.requires_grad for each in parameters),
                fresh=_is_fresh(module),
                undone=site(undone.mark) if undone else None,
                earlier=undone is not None and 0 < began <= sum(undone.frozen[number : number + 1]),
                resumed=undone is not None and last > sum(undone.calls[number : number + 1]),
                unused=undone is not None and undone.unused,
                again=tuple(Again(site(mark), name) for mark, name in undone.lines.items())
                if undone
                else (),
            )

    @staticmethod
    def _is_trained(model: nn.Module | None, name: str, owned: set[int]) -> bool:
        """Return whether the nearest module around a layer with parameters has trained ones."""
        while model is not None and name:
            name = name.rpartition(".")[0]
            parameters = list(unwrapped(model).get_submodule(name).parameters())
            if parameters:
                return any(each.requires_grad and id(each) in owned for each in parameters)
        return False


def _is_fresh(module: nn.Module) -> bool:
    mean = getattr(module, "running_mean", None)
    return isinstance(mean, torch.Tensor) and not bool(mean.any())
