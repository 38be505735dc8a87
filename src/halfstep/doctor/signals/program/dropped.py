"""Weights that a program loads from a file into a model, which it then drops without a use.

Another model of the same class and shapes is trained from its random weights. It exists when the
file is loaded, or is made later by a program that has trained nothing before: a model may also get
the result of a training, and the next training begin with a new one. A model that the program
calls, or whose weights it reads, saves or copies, has had a use, and is forgotten.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

import torch
from torch import nn

from halfstep.doctor.internals import weak_storage
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.ledgers.followers import address
from halfstep.doctor.signals.program.loads import states_in
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.optim import Optimizer

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_LOADS = 8
_MOST = 4096  # tensors of a file
_STEPS = 64  # after which only calls of a model are expected to use it


@dataclass(frozen=True, slots=True)
class DroppedLoad:
    """A model that was loaded from a file and not used, while one of the same kind was trained.

    Attributes:
        module: Class of the model.
        weights: Number of its parameters.
        site: The line of the load.
    """

    module: str
    weights: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class DroppedLoads:
    """All such models."""

    signal: ClassVar[str] = "dropped loads"
    found: tuple[DroppedLoad, ...] = ()


@dataclass(slots=True, eq=False)
class _Load:
    """A model that was loaded and has not been used since.

    Attributes:
        module: The model.
        kind: Its class.
        shapes: The shapes of its parameters.
        parameters: Its parameters, which other models may contain.
        storages: Their memory, by address.
        mark: The line of the load.
        steps: Steps of optimizers since then.
        is_first: Whether no optimizer has stepped before.
        others: Models of the same kind that had neither run nor got weights before.
        trains: Whether an optimizer has moved one of these.
    """

    module: weakref.ref[nn.Module]
    kind: type[nn.Module]
    shapes: list[torch.Size]
    parameters: list[weakref.ref[nn.Parameter]]
    storages: dict[int, StorageWeakRef]
    mark: Mark | None
    steps: int
    is_first: bool
    others: WeakSet[nn.Module]
    trains: bool

    @property
    def ids(self) -> set[int]:
        return {id(each) for ref in self.parameters if (each := ref()) is not None}

    def is_at(self, keys: set[int]) -> bool:
        """Return whether its weights are at one of some addresses; others may get freed memory."""
        return any(not self.storages[key].expired() for key in self.storages.keys() & keys)


class Dropping(Signal):
    """Follows models that were loaded from a file to their first use."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._files: set[int] = set()
        self._set: WeakSet[nn.Module] = WeakSet()  # models that have got a state
        self._called: WeakSet[nn.Module] = WeakSet()
        self._loads: list[_Load] = []
        self._has_stepped = False

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of what loads a file, and a state into a module or out of it."""
        yield Hook(torch, "load", self.watched.here(self._on_file))
        yield Hook(nn.Module, "load_state_dict", self.watched.here(self._on_load))
        yield Hook(nn.Module, "state_dict", self.watched.here(self._on_state))

    def _on_file(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with self.watched.guard.own():
            states = [*states_in(result)]
            self._files = {address(each) for state in states for each in [*state.values()][:_MOST]}
            self._files.discard(0)
        return result

    def _on_load(
        self, original: Any, module: nn.Module, state: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        result = original(module, state, *args, **kwargs)
        with self.watched.guard.own():
            mine = {id(each) for each in module.parameters()}
            self._loads = [each for each in self._loads if not each.ids & mine]
            self._set.add(module)
            if module not in self._called and self._is_of_file(state):
                self._add(module, calling_line())
        return result

    def _is_of_file(self, state: Any) -> bool:
        """Return whether all tensors of a state come from the last file."""
        tensors = tensors_in(state)
        return len(tensors) > 1 and {address(each) for each in tensors} <= self._files

    def _add(self, module: nn.Module, mark: Mark | None) -> None:
        parameters = [*module.parameters()]
        if parameters and len(self._loads) < _LOADS:
            self._loads.append(
                _Load(
                    weakref.ref(module),
                    type(module),
                    _shapes(module),
                    [weakref.ref(each) for each in parameters],
                    {key: weak_storage(each) for each in parameters if (key := address(each))},
                    mark,
                    0,
                    not self._has_stepped,
                    self._others(module),
                    trains=False,
                )
            )

    def _others(self, module: nn.Module) -> WeakSet[nn.Module]:
        shapes = _shapes(module)
        return WeakSet(
            each
            for each in gc.get_objects()
            if type(each) is type(module) and each is not module and each not in self._called
            if not self._has_weights(each) and _shapes(each) == shapes
        )

    def _has_weights(self, module: nn.Module) -> bool:
        return any(each in self._set for each in module.modules())

    def _on_state(self, original: Any, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        if self._loads:
            with self.watched.guard.own():
                self._use(module)
        return result

    # ------------------------------------------------------------ uses

    def _use(self, module: nn.Module) -> None:
        mine = {id(each) for each in module.parameters()}
        keys = {address(each) for each in module.parameters()}
        held = _held(module)
        self._loads = [
            each
            for each in self._loads
            if not (each.ids & mine or each.is_at(keys) or id(each.module()) in held)
        ]

    def _read(self, tensors: Sequence[torch.Tensor]) -> None:
        keys = {address(each) for each in tensors}
        self._loads = [each for each in self._loads if not each.is_at(keys)]

    def on_call(self, heard: Heard) -> None:
        """Forget a model whose weights the loop reads or changes."""
        if self._loads and any(each.steps < _STEPS for each in self._loads):
            self._read(heard.given)

    def on_read(self, tensor: torch.Tensor) -> None:
        """Forget a model whose weights the loop reads."""
        if self._loads:
            self._read([tensor])

    def before_write(
        self, name: str, written: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Forget a model whose weights get other memory."""
        del name
        if self._loads:
            self._read([*written, *values])

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Forget a loaded model that runs, and note one of the same kind that first runs now."""
        del made
        is_new = module not in self._called
        if is_new:
            self._called.add(module)
        if self._loads and is_new:
            self._use(module)
            for each in self._loads:
                if each.is_first and type(module) is each.kind and _shapes(module) == each.shapes:
                    each.others.add(module)
        elif self._loads:
            first = next(module.parameters(), None)
            self._read([*given, *([] if first is None else [first])])

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Note that a model of the same kind is trained."""
        del number, mark
        self._has_stepped = True
        for each in self._loads:
            each.steps += 1
            if each.others and not each.trains:
                owned = {id(parameter) for parameter in parameters_of(optimizer)}
                each.trains = any(
                    id(parameter) in owned
                    for module in each.others
                    if module in self._called and not self._has_weights(module)
                    for parameter in module.parameters()
                )

    def freeze(self) -> dict[str, Any]:
        """Return the models that nothing has used."""
        found = tuple(
            DroppedLoad(each.kind.__name__, len(each.parameters), site(each.mark))
            for each in self._loads
            if each.trains
        )
        return {DroppedLoads.signal: DroppedLoads(found)}


def _shapes(module: nn.Module) -> list[torch.Size]:
    return [each.shape for each in module.parameters()]


def _held(module: nn.Module) -> set[int]:
    """Return what a model keeps in attributes without a registration, such as in a list."""
    held = set[int]()
    for each in module.modules():
        for value in vars(each).values():
            parts = value.values() if isinstance(value, dict) else value
            held |= {*map(id, parts)} if isinstance(value, dict | list | tuple) else {id(value)}
    return held - {id(None)}  # what a reference to a model that is gone returns
