"""Weights that a program loads into a new model, and initialises again before it uses them.

Followed are the parameters that `load_state_dict` sets, or a copy of a tensor from a file, until
the first call of a model that contains them. A parameter that the program reads in between, such as
to copy it, has had a use, and is forgotten.
"""

from __future__ import annotations

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
    from collections.abc import Iterable, Iterator, Sequence

    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.optim import Optimizer

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_MOST = 4096  # parameters, and tensors of files
_STEPS = 64  # after which a model that was loaded is not expected to be used
_DRAWS = frozenset(
    {
        *("normal_", "uniform_", "trunc_normal_", "orthogonal_", "sparse_", "bernoulli_"),
        *("kaiming_normal_", "kaiming_uniform_", "xavier_normal_", "xavier_uniform_"),
    }
)
_CONSTANTS = frozenset({"zero_", "fill_", "constant_", "zeros_", "ones_", "eye_", "dirac_"})
_MAKES = frozenset({"randn", "rand", "randn_like", "rand_like", "normal"})
_TELLS = frozenset({"numpy", "equal", "allclose", "__bool__"})


@dataclass(frozen=True, slots=True)
class OverwrittenLoad:
    """Loaded weights of a model that were all lost before its first call.

    Attributes:
        module: Class of the model.
        weights: Number of parameters with more than one dimension that were loaded, and lost.
        load: The line of the load.
        site: The line that has overwritten the last one of them.
    """

    module: str
    weights: int
    load: Site | None
    site: Site | None


@dataclass(frozen=True, slots=True)
class OverwrittenLoads:
    """All such models that were trained."""

    signal: ClassVar[str] = "overwritten loads"
    found: tuple[OverwrittenLoad, ...] = ()


@dataclass(slots=True)
class _Loaded:
    """A parameter that was loaded.

    Attributes:
        storage: Its memory.
        size: Number of its elements.
        load: The line of the load.
        lost: Whether other values have replaced it.
        drawn: Whether these are random numbers.
        mark: The line that has replaced it.
    """

    storage: StorageWeakRef
    size: int
    load: Mark | None
    lost: bool = False
    drawn: bool = False
    mark: Mark | None = None


class Overwriting(Signal):
    """Follows loaded parameters to the first call of their model."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._loaded: dict[int, _Loaded] = {}  # by address
        self._files: dict[int, StorageWeakRef] = {}
        self._drawn: dict[int, StorageWeakRef] = {}
        self._called: WeakSet[nn.Module] = WeakSet()
        self._steps = 0
        self._waiting: list[tuple[set[int], OverwrittenLoad]] = []
        self._found: list[OverwrittenLoad] = []

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of what loads a file, and a state into a module."""
        yield Hook(torch, "load", self.watched.here(self._on_file))
        yield Hook(nn.Module, "load_state_dict", self.watched.here(self._on_load))

    def _on_file(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with self.watched.guard.own():
            self._files = {
                key: weak_storage(each)
                for state in states_in(result)
                for each in [*state.values()][:_MOST]
                if (key := address(each))
            }
            self._steps = 0
        return result

    def _on_load(self, original: Any, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        with self.watched.guard.own():
            missing, mark = {*getattr(result, "missing_keys", ())}, calling_line()
            for name, each in module.named_parameters():
                if name not in missing:
                    self._load(each, mark)
            self._forget_used(module)
        return result

    def _load(self, parameter: torch.Tensor, mark: Mark | None) -> None:
        key = address(parameter)
        if key and (key in self._loaded or len(self._loaded) < _MOST):
            self._loaded[key] = _Loaded(weak_storage(parameter), parameter.numel(), mark)
            self._steps = 0

    def _forget_used(self, module: nn.Module) -> None:
        """Forget the parameters of models that have run before: they may begin a new training."""
        mine = {id(each): address(each) for each in module.parameters()}
        for used in self._called:
            for each in used.parameters():
                if id(each) in mine:
                    self._loaded.pop(mine[id(each)], None)

    def before_write(
        self, name: str, written: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Note that a loaded parameter gets other memory."""
        if name == "data" and self._loaded and written and values:
            known = self._loaded.pop(address(written[0]), None)
            if known is not None and self._is_drawn(values[0]):
                key = address(values[0])
                self._loaded[key] = _Loaded(weak_storage(values[0]), known.size, known.load)
                self._replace(values[0], drawn=True)

    def on_call(self, heard: Heard) -> None:
        """Note what replaces a loaded parameter, and what reads it."""
        if not (self._loaded or self._files):
            return
        name, args, given = heard.name, heard.call.args, heard.given
        if name in _DRAWS or name in _CONSTANTS:
            for each in tensors_in((args[:1], heard.call.kwargs))[:1]:
                self._replace(each, drawn=name in _DRAWS)
                if name in _DRAWS:
                    self._drawn[address(each)] = weak_storage(each)
            return
        if name == "copy_" and len(given) > 1:
            self._copy(given[0], given[1])
            return
        made = tensors_in(heard.result)
        keys = {address(each): each.numel() for each in made}
        if name in _MAKES or any(map(self._is_drawn, given)):
            self._drawn |= {address(each): weak_storage(each) for each in made if address(each)}
        if name.startswith("new_") or name.endswith("_like"):
            return  # These take the format and the device, not the values.
        changes = name.endswith("_") and not name.endswith("__")
        for each in given if made or name in _TELLS else ():
            if changes or keys.get(address(each)) != each.numel():  # no other view of it
                self._forget_unless_lost([each])

    def on_read(self, tensor: torch.Tensor) -> None:
        """Forget a loaded parameter whose values the loop reads."""
        if self._loaded:
            self._forget_unless_lost([tensor])

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._forget_unless_lost([source])
        storage = self._files.get(address(source))
        if storage is not None and not storage.expired():
            if isinstance(target, nn.Parameter) or address(target) not in self._files:
                self._load(target, calling_line())
        elif self._is_drawn(source):
            self._replace(target, drawn=True)
        else:
            self._loaded.pop(address(target), None)

    def _forget_unless_lost(self, tensors: Iterable[torch.Tensor]) -> None:
        for each in tensors:
            known = self._loaded.get(address(each))
            if known is not None and not known.lost:
                del self._loaded[address(each)]

    def _is_drawn(self, tensor: torch.Tensor) -> bool:
        storage = self._drawn.get(address(tensor)) if self._drawn else None
        return storage is not None and not storage.expired()

    def _replace(self, tensor: torch.Tensor, *, drawn: bool) -> None:
        known = self._loaded.get(address(tensor))
        if known is not None and tensor.numel() == known.size:
            known.lost, known.drawn, known.mark = True, drawn, calling_line()

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Look at the loaded parameters of a model at its first call."""
        del given, made
        if module not in self._called:
            self._called.add(module)
        if not self._loaded:
            return
        mine = [
            (each, known)
            for each in module.parameters()
            if (known := self._loaded.pop(address(each), None)) and not known.storage.expired()
        ]
        weights = [known for each, known in mine if each.dim() > 1]
        if weights and all(each.lost for _, each in mine) and any(each.drawn for each in weights):
            last = weights[-1]
            load = OverwrittenLoad(
                type(module).__name__, len(weights), site(last.load), site(last.mark)
            )
            self._waiting.append(({id(each) for each, _ in mine}, load))

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Keep the models that are trained; forget loads that nothing uses."""
        del number, mark
        if self._loaded or self._files:
            self._steps += 1
            if self._steps > _STEPS:
                self._loaded, self._files, self._drawn = {}, {}, {}
        if self._waiting:
            owned = {id(each) for each in parameters_of(optimizer)}
            trained = [load for ids, load in self._waiting if ids & owned]
            if trained:
                self._found += trained
                self._waiting = []

    def freeze(self) -> dict[str, Any]:
        """Return the loads that were lost."""
        return {OverwrittenLoads.signal: OverwrittenLoads(tuple(self._found))}
