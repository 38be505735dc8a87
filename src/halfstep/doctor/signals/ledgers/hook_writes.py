"""Finds hooks of the program that write parameters while a backward pass runs.

In sampled backward passes, a few elements of the parameter that a hook belongs to are compared with
those before the hook, and with those that the last step left, which a hook may put back. The
comparisons stay on the device until the end.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from dataclasses import field
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from halfstep.doctor.record.arguments import argument_write
from halfstep.doctor.record.sites import Mark, Site, calling_line, is_of_user, site
from halfstep.doctor.signals.signal import Hook, Registration, Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tensors.elements import some
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer

    from halfstep.doctor.signals.watched import Watched

GIVES_PARAMETER = "register_post_accumulate_grad_hook"
_METHODS = (
    (torch.Tensor, GIVES_PARAMETER),
    (torch.Tensor, "register_hook"),
    (nn.Module, "register_full_backward_hook"),
    (nn.Module, "register_full_backward_pre_hook"),
)
_PROBES = 8  # hooks of one line
_LINES = 32
_ELEMENTS = 32


@dataclass(frozen=True, slots=True)
class BackwardWrite:
    """A function that writes parameters of an optimizer as a hook.

    Attributes:
        by: Name of the method that registers it.
        passes: Number of sampled backward passes, counted for each examined parameter.
        touched: Number of them in which the function wrote the parameter.
        changed: Number of them in which the parameter has other values since.
        registered: The line that registers the hook.
        site: The first line of its statement that writes its argument; None if unknown.
        change: This statement with the gradient in place of the parameter; () if unknown.
    """

    by: str
    passes: int
    touched: int
    changed: int
    registered: Site | None
    site: Site | None
    change: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BackwardWrites:
    """All such functions."""

    signal: ClassVar[str] = "backward writes"
    hooks: tuple[BackwardWrite, ...] = ()


@dataclass(slots=True, eq=False)
class _Probe:
    """A hook whose parameter is examined.

    Attributes:
        parameter: The parameter.
        left: A few of its elements after the last step, if that one was sampled.
        passes: Number of examined calls.
        versions: Number of them after which its version was another one; `.data` hides writes.
        compared: For each call, whether the elements differ from those before the call, and
            from those that the step left.
        updates: Whether the hook makes updates itself: it steps an optimizer, or clears the
            gradient.
    """

    parameter: weakref.ref[torch.Tensor]
    left: torch.Tensor | None = None
    passes: int = 0
    versions: int = 0
    compared: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    updates: bool = False


class _Examined:
    """A hook whose writes are examined; saved and copied as the hook itself."""

    def __init__(self, hook: Callable[..., Any], run: Callable[[Any, Any], Any]) -> None:
        functools.update_wrapper(self, hook, updated=())
        self._hook, self._run = hook, run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._hook,)


def _itself(hook: Callable[..., Any]) -> Callable[..., Any]:
    return hook


class HooksThatWrite(Signal):
    """Wraps a few of the hooks that each line registers."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lines: dict[tuple[str, Mark | None, CodeType], list[_Probe]] = {}
        self._bound: dict[CodeType, int] = {}
        self._running: list[_Probe] = []
        self._steps = 0
        self._on = False
        self._stepped: set[int] = set()

    def hooks(self) -> Iterator[Hook | Registration]:
        """Yield the hooks of the methods that register hooks of backward passes."""
        yield Registration(lambda: self._stop)
        for owner, name in _METHODS:
            yield Hook(owner, name, self.watched.here(functools.partial(self._on_register, name)))

    def _on_register(
        self, name: str, original: Any, owner: Any, hook: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        with self.watched.guard.own():
            hook = self._examined(name, owner, hook)
        return original(owner, hook, *args, **kwargs)

    def _examined(self, name: str, owner: Any, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook whose writes are examined; the given one if it is not of interest."""
        code, place = _code(hook)
        if code is None or not is_of_user(code.co_filename) or isinstance(hook, _Examined):
            return hook
        parameter = next(iter(owner.parameters()), None) if isinstance(owner, nn.Module) else owner
        if parameter is None or not (parameter.is_leaf and parameter.requires_grad):
            return hook
        key = name, calling_line(), code
        if key not in self._lines and len(self._lines) >= _LINES:
            return hook
        probes = self._lines.setdefault(key, [])
        self._bound[code] = place
        if len(probes) >= _PROBES:
            return hook
        probe = _Probe(weakref.ref(parameter))
        probes.append(probe)
        return _Examined(hook, functools.partial(self.call, probe, name, hook))

    def call(self, probe: _Probe, by: str, hook: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a hook, and compare its parameter if the step is sampled."""
        parameter = probe.parameter()
        if not self._on or parameter is None or torch.compiler.is_compiling():
            return hook(*args, **kwargs)
        version, before = parameter._version, some(parameter, _ELEMENTS).clone()
        self._running.append(probe)
        try:
            result = hook(*args, **kwargs)
        finally:
            self._running.pop()
        with self.watched.guard.own():
            _compare(probe, by, parameter, version, before)
        return result

    def _stop(self) -> None:
        self._on = False

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Note whether a hook steps, or the loop."""
        del optimizer, mark
        if self._running:
            self._running[-1].updates = True
        else:
            self._stepped.add(number)

    def after_step(self, optimizer: Optimizer) -> None:
        """Keep what a sampled step leaves."""
        del optimizer
        if self._running or not self._lines:
            return
        self._steps += 1
        self._on = is_sampled(self._steps)
        if self._on:
            for probe in self._probes():
                parameter = probe.parameter()
                probe.left = None if parameter is None else some(parameter, _ELEMENTS).clone()

    def _probes(self) -> Iterator[_Probe]:
        return (probe for probes in self._lines.values() for probe in probes)

    def freeze(self) -> dict[str, Any]:
        """Return the hooks that write parameters which the loop's steps update, too."""
        alive = self.watched.registry.optimizers.alive()
        owned = {
            id(each)
            for number in self._stepped & alive.keys()
            for each in parameters_of(alive[number])
        }
        found = []
        for (name, mark, code), probes in self._lines.items():
            mine = [each for each in probes if id(each.parameter()) in owned]
            versions, changed = sum(each.versions for each in mine), sum(map(_changes, mine))
            if any(each.updates for each in probes) or not (versions or changed):
                continue
            write = argument_write(code, self._bound[code]) if name == GIVES_PARAMETER else None
            found.append(
                BackwardWrite(
                    by=name,
                    passes=sum(each.passes for each in mine),
                    touched=max(versions, changed),
                    changed=changed,
                    registered=site(mark),
                    site=site(write.mark) if write else None,
                    change=write.change if write else (),
                )
            )
        return {BackwardWrites.signal: BackwardWrites(tuple(found))}


def _compare(
    probe: _Probe, by: str, parameter: torch.Tensor, version: int, before: torch.Tensor
) -> None:
    now = some(parameter, _ELEMENTS)
    probe.passes += 1
    probe.versions += parameter._version != version
    probe.updates |= by == GIVES_PARAMETER and parameter.grad is None
    if before.shape == now.shape and before.device == now.device:
        left = before if probe.left is None or probe.left.shape != now.shape else probe.left
        probe.compared.append(((before != now).any(), (left != now).any()))


def _changes(probe: _Probe) -> int:
    """Return how often a hook left other values than those before it and those of the step."""
    return sum(bool(changed) and bool(other) for changed, other in probe.compared)


def _code(hook: Any) -> tuple[CodeType | None, int]:
    """Return the code of a hook, and the index of the argument that it is called with."""
    given = 0
    hook = inspect.unwrap(hook)  # Other signals wrap hooks, too.
    while isinstance(hook, functools.partial):
        given += len(hook.args)
        hook = inspect.unwrap(hook.func)
    if not isinstance(hook, FunctionType | MethodType):
        hook = getattr(hook, "__call__", None)  # noqa: B004  (the method of an object)
    if isinstance(hook, MethodType):
        given += 1
        hook = hook.__func__
    return (hook.__code__, given) if isinstance(hook, FunctionType) else (None, 0)
