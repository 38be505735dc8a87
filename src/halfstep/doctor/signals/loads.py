"""Counts how many parameters of a module each call of `load_state_dict` has set.

With `strict=False`, a state whose names have another prefix sets none, and raises no error.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.record.source import statement
from halfstep.doctor.signals.signal import Hook, Signal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.watched import Watched

_MOST = 256  # calls
_FEW = 0.1  # of the parameters, and of the state
_FEWEST = 2  # tensors of a state; a smaller one may be no state of a model


@dataclass(frozen=True, slots=True)
class Load:
    """A load that has set hardly any parameter of a module that the program uses.

    Attributes:
        module: Class of the module.
        parameters: Number of its parameters.
        given: Number of names in the state.
        matched: Number of the parameters that the load has set.
        renamed: Number of the parameters that it would have set with other prefixes.
        removed: The prefix to remove from the names of the state; "" for none.
        added: The prefix to add to them; "" for none.
        inside: The entry of the state that contains the names; "" for none.
        expected: A name of a parameter.
        got: A name in the state.
        made_by: The statement of the call.
        site: The line of the call.
    """

    module: str
    parameters: int
    given: int
    matched: int
    renamed: int
    removed: str
    added: str
    inside: str
    expected: str
    got: str
    made_by: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class Loads:
    """All such loads whose parameters no other load has set."""

    signal: ClassVar[str] = "loads"
    empty: tuple[Load, ...] = ()


@dataclass(slots=True)
class _Note:
    module: weakref.ref[nn.Module]
    names: frozenset[str]  # of the parameters that the load has set
    mark: Mark | None = None
    parameters: int = 0
    given: int = 0
    renamed: int = 0
    removed: str = ""
    added: str = ""
    inside: str = ""
    expected: str = ""
    got: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the load has set hardly any parameter, and used hardly any of the state."""
        return len(self.names) <= _FEW * min(self.parameters, self.given)


class StateLoads(Signal):
    """Compares the names of each loaded state with those of the module's parameters."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._notes: list[_Note] = []

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the method that loads a state into a module."""
        yield Hook(nn.Module, "load_state_dict", self.watched.here(self._on_load))

    def _on_load(self, original: Any, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        with self.watched.guard.own():
            state = args[0] if args else kwargs.get("state_dict")
            missing = getattr(result, "missing_keys", None)
            if isinstance(state, Mapping) and missing is not None and len(self._notes) < _MOST:
                self._notes.append(_note(module, state, frozenset(missing)))
        return result

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
        return {Loads.signal: Loads(tuple(found.values()))}

    @staticmethod
    def _is_lost(note: _Note, used: set[int], loaded: set[int]) -> bool:
        """Return whether a program uses the parameters of an empty load, and never loads them."""
        module = note.module()
        mine = [] if module is None else [id(each) for each in module.parameters()]
        return any(each in used for each in mine) and (
            sum(each in loaded for each in mine) <= _FEW * len(mine)
        )


def _note(module: nn.Module, state: Mapping[str, Any], missing: frozenset[str]) -> _Note:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    note = _Note(
        weakref.ref(module),
        frozenset(parameters.keys() - missing),
        parameters=len(parameters),
        given=len(state),
    )
    if not parameters or not state or not note.is_empty:
        return note
    shapes = {name: each.shape for name, each in parameters.items()}
    others = {str(name): getattr(each, "shape", None) for name, each in state.items()}
    found = {
        "removed": _prefixes(others, shapes),
        "added": _prefixes(shapes, others),
        "inside": _entries(state, shapes),
    }
    for attribute, counts in found.items():
        prefix, count = max(counts.items(), key=lambda each: each[1], default=("", 0))
        if count > note.renamed:
            note.renamed, note.removed, note.added, note.inside = count, "", "", ""
            setattr(note, attribute, prefix)
    if note.renamed or len(state) >= _FEWEST:
        note.mark = calling_line()
        note.expected, note.got = next(iter(parameters)), str(next(iter(state)))
    return note


def _entries(state: Mapping[str, Any], shapes: Mapping[str, Any]) -> Counter[str]:
    """Count the names of parameters in each entry of a state that is a state itself."""
    return Counter(
        {
            str(key): sum(
                getattr(entry.get(name), "shape", None) == shape for name, shape in shapes.items()
            )
            for key, entry in state.items()
            if isinstance(entry, Mapping)
        }
    )


def _prefixes(longer: Mapping[str, Any], shorter: Mapping[str, Any]) -> Counter[str]:
    """Count the names that equal another one after a prefix, and have its shape, by prefix."""
    found: Counter[str] = Counter()
    for name, shape in longer.items():
        at = name.find(".") + 1
        while at:
            if shorter.get(name[at:]) == shape is not None:
                found[name[:at]] += 1
            at = name.find(".", at) + 1
    return found


def _frozen(note: _Note) -> Load:
    return Load(
        module=type(note.module()).__name__,
        parameters=note.parameters,
        given=note.given,
        matched=len(note.names),
        renamed=note.renamed,
        removed=note.removed,
        added=note.added,
        inside=note.inside,
        expected=note.expected,
        got=note.got,
        made_by=statement(note.mark),
        site=site(note.mark),
    )
