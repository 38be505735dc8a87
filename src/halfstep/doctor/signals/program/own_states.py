"""Finds states that a program keeps without a copy, and loads after it has changed.

`state_dict()` returns the parameters' own memory. So a state that is kept as the best one so far,
or as the one before an evaluation, changes with the weights, and loading it changes nothing. This
also holds for arrays and other tensors that share this memory; such a state was then kept by the
last call of `state_dict()`, or before it. And it holds for lines that copy parameters one by one,
each from its own memory; but where they do so in each step, copies in fp32 may be the parameters.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from halfstep.doctor.internals import version_of
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.record.source import statement
from halfstep.doctor.signals.ledgers.followers import address
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.signals.watched import Watched

_MOST = 1024  # states
_PARAMETERS = 2  # copied by a line
_RARE = 4  # steps before each copy


@dataclass(frozen=True, slots=True)
class OwnState:
    """A load, or a line that copies parameters, that gave a module its own weights.

    Attributes:
        module: Class of the module; "" for a line that copies parameters.
        count: How often the line did so.
        steps: Number of steps of all optimizers between the last of these states and its load.
        kept_by: The statement that kept the state.
        kept: The line that kept it.
        site: The line that loaded it.
    """

    module: str
    count: int
    steps: int
    kept_by: str
    kept: Site | None
    site: Site | None


@dataclass(frozen=True, slots=True)
class OwnStates:
    """All such loads, by line."""

    signal: ClassVar[str] = "own_states"
    loads: tuple[OwnState, ...] = ()


class KeptStates(Signal):
    """Notes at which step each state was taken, and compares the memory of each loaded one."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._taken: dict[int, tuple[weakref.ref[torch.Tensor], int, int, Mark | None]] = {}
        self._latest: weakref.WeakKeyDictionary[nn.Module, tuple[int, int, Mark | None]] = (
            weakref.WeakKeyDictionary()
        )
        self._found: dict[Mark | None, tuple[str, int, int, Mark | None]] = {}
        self._copies: dict[Mark | None, dict[int, list[int]]] = {}  # steps before, by address
        self._loading = 0

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the methods that return and load a state."""
        yield Hook(nn.Module, "state_dict", self.watched.in_loop(self._on_taken))
        yield Hook(nn.Module, "load_state_dict", self.watched.here(self._on_load))

    def _on_taken(self, original: Any, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        with self.watched.guard.inside():  # Each submodule adds its part, tensor by tensor.
            state = original(module, *args, **kwargs)
        with self.watched.guard.own():
            first = _first(state)
            if first is not None:
                note = weakref.ref(first), _version(state), self._steps(), calling_line()
                self._taken[id(first)] = note
                self._latest[module] = version_of(*module.parameters()), *note[2:]
                while len(self._taken) > _MOST:
                    del self._taken[next(iter(self._taken))]
        return state

    def _on_load(self, original: Any, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        with self.watched.guard.own():
            state = args[0] if args else kwargs.get("state_dict")
            first = _first(state)
            reference, version, before, kept = self._taken.get(id(first), (None, 0, 0, None))
            is_known = reference is not None and reference() is first
            is_changed = is_known and version != _version(state)
            if not is_known and module in self._latest:
                version, before, kept = self._latest[module]
                is_changed = version != version_of(*module.parameters())
            if is_changed and _is_own(module, state):
                line, passed = calling_line(), self._steps() - before
                count = self._found.get(line, ("", 0))[1] + 1
                self._found[line] = type(module).__name__, count, passed, kept
        self._loading += 1
        try:
            return original(module, *args, **kwargs)
        finally:
            self._loading -= 1

    def before_write(
        self, name: str, written: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Note the lines that copy parameters from their own memory, and from that alone."""
        if self._loading or name != "copy_" or len(written) != 1 or len(values) != 1:
            return
        if not self._steps():
            return
        copied, key = self._copies.setdefault(calling_line(), {}), address(written[0])
        if 0 in copied or len(copied) >= _MOST:
            return
        is_own = 0 != key == address(values[0]) and written[0].shape == values[0].shape
        key = key if is_own and isinstance(written[0], nn.Parameter) else 0
        copied.setdefault(key, [0]).append(self._steps())

    def _own_copies(self) -> Iterator[OwnState]:
        for mark, copied in self._copies.items():
            if 0 in copied or len(copied) < _PARAMETERS:
                continue
            gaps = [after - before for each in copied.values() for before, after in pairwise(each)]
            if min(gaps) >= _RARE:
                yield OwnState("", len(gaps) // len(copied), self._steps(), "", None, site(mark))

    def _steps(self) -> int:
        return sum(each.steps for each in self.watched.registry.optimizers.notes)

    def freeze(self) -> dict[str, Any]:
        """Return the loads."""
        found = [
            OwnState(module, count, steps, statement(kept), site(kept), site(line))
            for line, (module, count, steps, kept) in self._found.items()
        ]
        return {OwnStates.signal: OwnStates((*found, *self._own_copies()))}


def _first(state: Any) -> torch.Tensor | None:
    values = state.values() if isinstance(state, Mapping) else ()
    return next((each for each in values if isinstance(each, torch.Tensor)), None)


def _version(state: Any) -> int:
    """Return a number that grows with each write to a tensor of a state."""
    return version_of(*(each for each in state.values() if isinstance(each, torch.Tensor)))


def _is_own(module: nn.Module, state: Any) -> bool:
    """Return whether each parameter of a module has the memory of the entry with its name."""
    pairs = [(state.get(name), each) for name, each in module.named_parameters()]
    return bool(pairs) and all(
        isinstance(given, torch.Tensor) and address(given) == address(each) != 0
        for given, each in pairs
    )
