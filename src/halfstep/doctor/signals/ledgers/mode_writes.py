"""Finds modules of the program whose own `train()` or `eval()` changes weights.

A few elements of the parameters are compared before and after such a call. If calls have changed
them, and the next step begins without the values of before, a copy of the module is switched twice
after the run: this tells changes that add up, such as a merge without a flag, from those that are
made only once. The same is done for a call of `train()` of a module that is in training mode.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import io
from dataclasses import field
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary, WeakSet

import torch

from halfstep.doctor.internals import modules_of
from halfstep.doctor.record.blocks import function_at
from halfstep.doctor.record.sites import Mark, Site, is_of_user, site
from halfstep.doctor.signals.signal import Hook, Registration, Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.tensors.elements import some
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.doctor.signals.watched import Watched

_ROUNDS = 16  # of one module
_CALLS = 8  # in one round
_MODULES = 64
_PROBES = 32
_ELEMENTS = 32
_UNDONE = 0.1  # of a change, which is left when it is undone
_LARGEST = 50_000_000  # elements of a module that is copied


@dataclass(frozen=True, slots=True)
class ModeWrite:
    """A module whose mode changes its weights.

    Attributes:
        kind: Its class.
        name: The method, "train" or "eval".
        rounds: How often the module was switched to evaluation mode between two steps.
        again: Whether it was set to training mode instead, in which it already was.
        left: How often the second of these steps began with other weights.
        adds_up: Whether a copy of the module changed again when it was switched once more; None if
            it could not be copied.
        owner: The variable of the module in the method.
        site: The statement of the method that changes weights, or its first line.
    """

    kind: str
    name: str
    again: bool
    rounds: int
    left: int
    adds_up: bool | None
    owner: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class ModeWrites:
    """All such modules, one for each class."""

    signal: ClassVar[str] = "mode writes"
    modules: tuple[ModeWrite, ...] = ()


@dataclass(slots=True)
class _Round:
    """The time from a switch to evaluation mode to the next step.

    Attributes:
        again: Whether it begins with `train()` in training mode instead.
        before: The sampled elements before it.
        changes: How each call that sets the mode has changed them, with its code.
        left: The elements when the step begins, without those of before; None without a step.
    """

    again: bool
    before: torch.Tensor
    changes: list[tuple[CodeType, torch.Tensor]] = field(default_factory=list)
    left: torch.Tensor | None = None


class ModesThatWrite(Signal):
    """Wraps the methods of the program's classes that set the mode."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._seen: WeakSet[nn.Module] = WeakSet()
        self._wrapped: set[tuple[type[Any], str]] = set()
        self._restore: list[Callable[[], None]] = []
        self._rounds: WeakKeyDictionary[nn.Module, list[_Round]] = WeakKeyDictionary()
        self._open: WeakSet[nn.Module] = WeakSet()
        self._switching: set[int] = set()

    def hooks(self) -> Iterator[Registration]:
        """Yield what restores the methods."""
        yield Registration(lambda: self._remove)

    def _remove(self) -> None:
        while self._restore:
            self._restore.pop()()

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Wrap the methods of the classes in a new model."""
        del given, made
        if module in self._seen and not self.watched.registry.model(module).is_looked_at:
            return  # Layers may be replaced later, for example by those of an adapter.
        self._seen.add(module)
        for kind in {type(each) for each in modules_of(module)}:
            for owner, name, method in _methods(kind):
                if (owner, name) not in self._wrapped:
                    self._wrapped.add((owner, name))
                    told = functools.partial(self._on_switch, method)
                    self._restore.append(Hook(owner, name, self.watched.here(told)).add())

    def _on_switch(
        self, method: FunctionType, original: Any, module: nn.Module, /, *args: Any, **kwargs: Any
    ) -> Any:
        current, before = None, None
        with self.watched.guard.own():
            mode = method.__name__ != "eval" and (args[0] if args else kwargs.get("mode", True))
            if id(module) not in self._switching:
                current = self._round(module, training=bool(mode))
                before = _elements(module) if current else None
        if current is None or before is None:
            return original(module, *args, **kwargs)
        self._switching.add(id(module))
        try:
            result = original(module, *args, **kwargs)
        finally:
            self._switching.discard(id(module))
        with self.watched.guard.own():
            now = _elements(module)
            if now is not None and now.shape == before.shape and len(current.changes) < _CALLS:
                current.changes.append((method.__code__, now - before))
        return result

    def _round(self, module: nn.Module, *, training: bool) -> _Round | None:
        """Return the round of a call that sets a mode; None if it is not of interest."""
        if module in self._open:
            return self._rounds[module][-1]
        if training and not module.training:
            return None
        rounds = self._rounds.get(module, [])
        full = sum(each.again == training for each in rounds) >= _ROUNDS
        full |= not rounds and len(self._rounds) >= _MODULES
        before = None if full else _elements(module)
        if before is None:
            return None
        rounds.append(_Round(training, before))
        self._rounds[module] = rounds
        self._open.add(module)
        return rounds[-1]

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Note the weights with which training goes on."""
        del optimizer, number, mark
        if not self._open:
            return
        for module in [*self._open]:
            current, now = self._rounds[module][-1], _elements(module)
            if now is not None and now.shape == current.before.shape:
                current.left = now - current.before
        self._open.clear()

    def freeze(self) -> dict[str, Any]:
        """Return the modules whose weights change with the mode, and are trained."""
        optimizers = self.watched.registry.optimizers.alive().values()
        owned = {id(each) for one in optimizers for each in parameters_of(one)}
        found: dict[tuple[type[Any], CodeType], ModeWrite] = {}
        inside: set[int] = set()
        # A module that contains another one with changes has no changes of its own.
        for module in sorted(self._rounds, key=lambda each: len(modules_of(each))):
            if not inside.isdisjoint(map(id, modules_of(module))):
                continue
            if not any(id(each) in owned for each in module.parameters()):
                continue
            rounds = self._rounds[module]
            kinds = ([each for each in rounds if each.again == again] for again in (False, True))
            write = next(filter(None, (_write(module, its) for its in kinds)), None)
            if write is not None:
                inside.add(id(module))
                found.setdefault((type(module), write[0]), write[1])
        return {ModeWrites.signal: ModeWrites(tuple(found.values()))}


def _write(module: nn.Module, rounds: Sequence[_Round]) -> tuple[CodeType, ModeWrite] | None:
    left = [each for each in rounds if _is_left(each.left, [its for _, its in each.changes])]
    if not left:
        return None
    code, _ = max(left[0].changes, key=lambda each: _size(each[1]))
    return code, ModeWrite(
        kind=type(module).__name__,
        name=code.co_name,
        again=left[0].again,
        rounds=len(rounds),
        left=len(left),
        adds_up=_adds_up(
            module, max(_size(change) for _, change in left[-1].changes), again=left[0].again
        ),
        owner=code.co_varnames[0],
        site=site(_writing_line(code)),
    )


def _methods(kind: type[Any]) -> Iterator[tuple[type[Any], str, FunctionType]]:
    """Yield the methods of the user's classes that set the mode."""
    for owner in kind.__mro__:
        for name in ("train", "eval"):
            method = vars(owner).get(name)
            if isinstance(method, FunctionType) and is_of_user(method.__code__.co_filename):
                yield owner, name, method


def _is_left(left: torch.Tensor | None, changes: Sequence[torch.Tensor]) -> bool:
    """Return whether a difference is more than a rest of changes that were undone."""
    change = max(map(_size, changes), default=0.0)
    return left is not None and change > 0 and _size(left) > _UNDONE * change


def _adds_up(module: nn.Module, usual: float, *, again: bool) -> bool | None:
    """Return whether the weights of a copy change again when it is switched for a second time.

    Args:
        module: The module.
        usual: How much a switch changed them in the run.
        again: Whether the copy is set to training mode each time, and never to evaluation mode.
    """
    if sum(each.numel() for each in module.parameters()) > _LARGEST:
        return None
    try:
        with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(io.StringIO()):
            other = copy.deepcopy(module)
            values = []
            for _ in range(2):
                for switch in (other.train if again else other.eval, other.train):
                    switch()
                    values.append(_elements(other))
    except Exception:  # noqa: BLE001  (it is the program's code)
        return None
    known = [each for each in values if each is not None]
    if len(known) < len(values) or len({each.shape for each in known}) > 1:
        return None
    _, first, _, second = known
    return _size(second - first) > _UNDONE * usual


def _elements(module: nn.Module) -> torch.Tensor | None:
    """Return a few elements of a few parameters, as float32."""
    parameters = [each for each in module.parameters() if each.is_floating_point()]
    probes = parameters[:: max(1, -(-len(parameters) // _PROBES))]
    if not probes:
        return None
    device = probes[0].device
    return torch.cat([some(each, _ELEMENTS).float() for each in probes if each.device == device])


def _size(change: torch.Tensor) -> float:
    size = float(change.abs().max()) if change.numel() else 0.0
    return size if size == size else 0.0  # NaN is the matter of others.  # noqa: PLR0124


def _writing_line(code: CodeType) -> tuple[str, int, str]:
    """Return the first line of a method that writes in place, or else calls another method."""
    tree = function_at(code.co_filename, code.co_firstlineno, code.co_name)
    nodes = [*ast.walk(tree)] if tree is not None else []
    lines = [
        each.lineno for each in nodes if isinstance(each, ast.stmt | ast.Call) and _writes(each)
    ]
    owner = code.co_varnames[0]
    lines = lines or [
        each.lineno for each in nodes if isinstance(each, ast.Call) and _is_own(each.func, owner)
    ]
    return code.co_filename, min(lines, default=code.co_firstlineno), code.co_name


def _writes(node: ast.stmt | ast.Call) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return name.endswith("_") and not name.endswith(("__", "requires_grad_"))
    if isinstance(node, ast.AugAssign):
        return not isinstance(node.target, ast.Name)
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(each, ast.Attribute) and each.attr == "data" for each in targets)


def _is_own(function: ast.expr, owner: str) -> bool:
    """Return whether a function is a method of the module that does not only set its mode."""
    return (
        isinstance(function, ast.Attribute)
        and function.attr not in {"train", "eval"}
        and isinstance(function.value, ast.Name)
        and function.value.id == owner
    )
