"""Counts how many parameters of a module each call of `load_state_dict` has set.

With `strict=False`, a state whose names have another prefix sets none, and raises no error. The
same holds for a loop that copies the tensors of a file by their names; nothing then reads a tensor
of this file.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from halfstep.doctor.internals import weak_storage
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.record.source import statement
from halfstep.doctor.signals.ledgers.followers import address
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.doctor.tensors.renamed import Renaming, renaming
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.optim import Optimizer

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_MOST = 256  # calls
_FEW = 0.1  # of the parameters, and of the state
_FILES = 4
_DEPTH = 3
_TRAINED = 3  # steps after a file was loaded
_OPEN = 64  # the same, after which only load_state_dict is expected to read it
_FEWEST = 2  # tensors of a state; a smaller one may be no state of a model


@dataclass(frozen=True, slots=True)
class Load:
    """A load that has set hardly any parameter of a module that the program uses.

    Attributes:
        module: Class of the module.
        parameters: Number of its parameters.
        given: Number of names in the state.
        matched: Number of the parameters that the load has set.
        renaming: The names under which it would have set more of them.
        filtered: Whether the state is the module's own, into which the names of a file should have
            come. The names given are then those of the file.
        unread: Whether it is a state in a file, of which the program has read no tensor.
        expected: A name of a parameter.
        got: A name in the state.
        made_by: The statement of the call.
        site: The line of the call.
    """

    module: str
    parameters: int
    given: int
    matched: int
    renaming: Renaming
    filtered: bool
    unread: bool
    expected: str
    got: str
    made_by: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class Loads:
    """All such loads whose parameters no other load has set.

    Attributes:
        empty: The loads.
        assigned: The last line that has replaced the parameters of a module, with `assign=True`,
            and its text; None without one.
    """

    signal: ClassVar[str] = "loads"
    empty: tuple[Load, ...] = ()
    assigned: tuple[Site, str] | None = None


@dataclass(slots=True)
class _Note:
    module: weakref.ref[nn.Module]
    names: frozenset[str]  # of the parameters that the load has set
    parameters: int
    given: int
    mark: Mark | None = None
    renaming: Renaming = field(default_factory=Renaming)
    expected: str = ""
    got: str = ""
    filtered: bool = False


@dataclass(frozen=True, slots=True)
class _Shape:
    """What is remembered of a tensor in a file."""

    shape: torch.Size


@dataclass(slots=True)
class _Unread:
    """A state in a file of which nothing has been read.

    Attributes:
        shapes: What is remembered of its tensors, by name.
        storages: References to the memory of these tensors, by address.
        steps: Number of steps of each optimizer before it was loaded, by number.
        mark: The line that has loaded the file.
    """

    shapes: dict[str, Any]
    storages: dict[int, StorageWeakRef]
    steps: dict[int, int]
    mark: Mark | None

    def holds(self, key: int) -> bool:
        """Return whether one of the tensors is at an address; another one may be there later."""
        storage = self.storages.get(key)
        return storage is not None and not storage.expired()


class StateLoads(Signal):
    """Compares the names of each loaded state with those of the module's parameters."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._notes: list[_Note] = []
        self._assigned: Mark | None = None
        self._files: deque[dict[str, Any]] = deque(maxlen=_FILES)
        self._unread: list[_Unread] = []
        self._is_open = False  # whether calls of the loop may still read one of them

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of what loads a file, and a state into a module."""
        yield Hook(torch, "load", self.watched.here(self._on_file))
        yield Hook(nn.Module, "load_state_dict", self.watched.here(self._on_load))

    def _on_file(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with self.watched.guard.own():
            self._files.append(_shapes(result, _DEPTH))
            optimizers, mark = self.watched.registry.optimizers, calling_line()
            steps = {number: each.steps for number, each in enumerate(optimizers.notes)}
            for state in states_in(result):
                shapes = {name: _Shape(each.shape) for name, each in state.items()}
                storages = {
                    key: weak_storage(each) for each in state.values() if (key := address(each))
                }
                self._unread.append(_Unread(shapes, storages, steps, mark))
            del self._unread[:-_FILES]
            self._is_open = bool(self._unread)
        return result

    def on_call(self, heard: Heard) -> None:
        """Forget a state of a file when the loop uses one of its tensors."""
        if self._is_open:
            self._read(heard.given)

    def before_write(
        self, name: str, written: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Forget a state of a file when the loop writes one of its tensors somewhere."""
        del name
        if self._is_open:
            self._read([*written, *values])

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Stop to look for calls that read a file when the training has gone on for long."""
        del mark
        if self._is_open:
            latest = self._unread[-1].steps.get(number, 0) if self._unread else 0
            steps = self.watched.registry.optimizer(optimizer).steps - latest
            self._is_open = bool(self._unread) and steps < _OPEN

    def _read(self, tensors: Iterable[torch.Tensor]) -> None:
        keys = {address(each) for each in tensors}
        self._unread = [each for each in self._unread if not any(map(each.holds, keys))]

    def _on_load(self, original: Any, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        with self.watched.guard.own():
            state = args[0] if args else kwargs.get("state_dict")
            if self._unread:
                self._read(tensors_in(state))
            own = _own_names(module, state) if isinstance(state, Mapping) else frozenset[str]()
        result = original(module, *args, **kwargs)
        with self.watched.guard.own():
            if kwargs.get("assign") or any(args[2:3]):
                self._assigned = calling_line()
            missing = getattr(result, "missing_keys", None)
            if isinstance(state, Mapping) and missing is not None and len(self._notes) < _MOST:
                self._take(module, state, own, frozenset(missing))
        return result

    def _take(
        self,
        module: nn.Module,
        state: Mapping[str, Any],
        own: frozenset[str],
        missing: frozenset[str],
    ) -> None:
        """Note a load.

        Args:
            module: The module.
            state: The state.
            own: Names of the parameters that the state had from the module itself.
            missing: Names that the state does not contain.
        """
        parameters = dict(module.named_parameters(remove_duplicate=False))
        names = frozenset(parameters.keys() - missing - own)
        note = _Note(weakref.ref(module), names, len(parameters), len(state))
        self._notes.append(note)
        few = _FEW * min(len(parameters), len(state))
        if not parameters or not state or len(names) > few:
            return
        tensors = [*parameters.items(), *module.named_buffers(remove_duplicate=False)]
        shapes = {name: each.shape for name, each in tensors}
        if not own:
            note.renaming = renaming(state, shapes)
        for file in self._files if own else ():  # The state of a file should have replaced them.
            better = renaming(file, shapes)
            if better.count > max(note.renaming.count, len(shapes.keys() & file.keys())):
                note.renaming, note.given, state = better, len(file), file
                note.filtered = True
        if note.renaming.count or (len(state) >= _FEWEST and not own):
            note.mark = calling_line()
            note.expected, note.got = next(iter(shapes)), str(next(iter(state)))

    def freeze(self) -> dict[str, Any]:
        """Return the loads that have set hardly anything."""
        registry = self.watched.registry
        used = {
            id(each) for model in registry.models.alive().values() for each in model.parameters()
        }
        loaded = {
            id(parameter)
            for note in self._notes
            if (module := note.module()) is not None
            for name, parameter in module.named_parameters(remove_duplicate=False)
            if name in note.names
        }
        empty = [note for note in self._notes if note.mark and self._is_lost(note, used, loaded)]
        found = {note.mark: _frozen(note) for note in empty}
        found |= {each.mark: load for each in self._unread for load in self._unused(each)}
        line = site(self._assigned)
        assigned = (line, statement(self._assigned)) if line is not None else None
        return {Loads.signal: Loads(tuple(found.values()), assigned)}

    def _unused(self, state: _Unread) -> Iterator[Load]:
        """Yield the models for which a state is, and that were trained on without it."""
        registry = self.watched.registry
        for model in registry.models.alive().values():
            tensors = [*model.named_parameters(), *model.named_buffers()]
            shapes = {name: each.shape for name, each in tensors}
            trained = any(
                registry.optimizer(each).steps >= state.steps.get(number, 0) + _TRAINED
                for number, each in registry.optimizers.alive().items()
                if {id(one) for one in parameters_of(each)} & set(map(id, model.parameters()))
            )
            is_used = any(state.holds(address(each)) for _, each in tensors)
            if not trained or is_used or model in registry.loaded or shapes.keys() & state.shapes:
                continue
            change = renaming(state.shapes, shapes)
            if change.count:
                count = sum(1 for _ in model.parameters())
                yield Load(
                    module=type(model).__name__,
                    parameters=count,
                    given=len(state.shapes),
                    matched=0,
                    renaming=change,
                    filtered=False,
                    unread=True,
                    expected=next(iter(shapes)),
                    got=next(iter(state.shapes)),
                    made_by=statement(state.mark),
                    site=site(state.mark),
                )

    @staticmethod
    def _is_lost(note: _Note, used: set[int], loaded: set[int]) -> bool:
        """Return whether a program uses the parameters of an empty load, and never loads them."""
        module = note.module()
        mine = [] if module is None else [id(each) for each in module.parameters()]
        return any(each in used for each in mine) and (
            sum(each in loaded for each in mine) <= _FEW * len(mine)
        )


def _own_names(module: nn.Module, state: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of parameters whose own memory the state contains."""
    found = set[str]()
    for name, each in module.named_parameters(remove_duplicate=False):
        given = state.get(name)
        if isinstance(given, torch.Tensor) and address(given) == address(each) != 0:
            found.add(name)
        elif not found:
            break  # Usually, the state is another one.
    return frozenset(found)


def _shapes(value: Any, depth: int) -> dict[str, Any]:
    """Return the shapes of the tensors in a file, and in the states that it contains."""
    if not isinstance(value, Mapping) or not depth:
        return {}
    found: dict[str, Any] = {}
    for name, each in value.items():
        if isinstance(each, torch.Tensor):
            found[str(name)] = _Shape(each.shape)
        elif isinstance(each, Mapping):
            found |= _shapes(each, depth - 1)
    return found


def states_in(value: Any, depth: int = _DEPTH) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the mappings of names to tensors in a file."""
    if not isinstance(value, Mapping) or not depth:
        return
    tensors = {name: each for name, each in value.items() if isinstance(each, torch.Tensor)}
    if len(tensors) >= _FEWEST and all(isinstance(name, str) for name in tensors):
        yield tensors
    for each in value.values():
        yield from states_in(each, depth - 1)


def _frozen(note: _Note) -> Load:
    return Load(
        module=type(note.module()).__name__,
        parameters=note.parameters,
        given=note.given,
        matched=len(note.names),
        renaming=note.renaming,
        filtered=note.filtered,
        unread=False,
        expected=note.expected,
        got=note.got,
        made_by=statement(note.mark),
        site=site(note.mark),
    )
