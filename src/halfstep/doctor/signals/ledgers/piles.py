"""Hooks that a line registers again and again on the same parameters or modules, without removal.

The second and later hooks are wrapped, to see whether they change a gradient or a result; a hook
of an optimizer or of a complete gradient changes the values of parameters or gradients in place.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.signals.state.gradients import probes
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfstep.doctor.signals.watched import Watched

_PILES = 4096
_HANDLES = 64
_VALUES = 16
_METHODS = (
    (torch.Tensor, "register_hook"),
    (torch.Tensor, "register_post_accumulate_grad_hook"),
    (Optimizer, "register_step_pre_hook"),
    (Optimizer, "register_step_post_hook"),
    (nn.Module, "register_forward_hook"),
    (nn.Module, "register_forward_pre_hook"),
    (nn.Module, "register_full_backward_hook"),
)


@dataclass(frozen=True, slots=True)
class HookPile:
    """A line that registers hooks on objects that still have those of its earlier runs.

    Attributes:
        by: Name of the method.
        objects: Number of parameters, modules or optimizers.
        hooks: Number of its hooks on one of them, at most.
        again: How often it registered one after further steps, on one of them, at most.
        changes: How often the second and later hooks returned another value, or changed values.
        site: The line.
    """

    by: str
    objects: int
    hooks: int
    again: int
    changes: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class HookPiles:
    """All such lines."""

    signal: ClassVar[str] = "piles"
    lines: tuple[HookPile, ...] = ()


@dataclass(slots=True, eq=False)
class _Pile:
    owner: weakref.ref[Any]
    handles: list[Any] = field(default_factory=list)
    most: int = 1
    again: int = 0
    changes: int = 0
    iteration: int = -1

    def settle(self) -> None:
        """Forget the hooks that were removed."""
        self.handles = [each for each in self.handles if each.id in (each.hooks_dict_ref() or ())]


class Piles(Signal):
    """Counts the hooks of each line on each object."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._piles: dict[tuple[int, str, Mark | None], _Pile] = {}

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the methods that register hooks."""
        for owner, name in _METHODS:
            yield Hook(owner, name, self.watched.here(functools.partial(self._on_register, name)))

    def _on_register(
        self, name: str, original: Any, owner: Any, hook: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        pile = None
        with self.watched.guard.own():
            if not isinstance(owner, torch.Tensor) or (owner.is_leaf and owner.requires_grad):
                pile = self._pile(name, owner, calling_line())
        if pile is None:
            return original(owner, hook, *args, **kwargs)
        with self.watched.guard.own():
            pile.settle()
            hook = _examined(hook, pile) if pile.handles else hook
        handle = original(owner, hook, *args, **kwargs)
        with self.watched.guard.own():
            self._add(pile, handle)
        return handle

    def _pile(self, name: str, owner: Any, mark: Mark | None) -> _Pile | None:
        key = id(owner), name, mark
        pile = self._piles.get(key)
        if pile is not None and pile.owner() is owner:
            return pile
        if pile is None and len(self._piles) >= _PILES:
            return None
        pile = self._piles[key] = _Pile(weakref.ref(owner))
        return pile

    def _add(self, pile: _Pile, handle: Any) -> None:
        # A method of torch may call itself by way of a function mode: this is the same hook.
        if any(each.id == handle.id for each in pile.handles) or len(pile.handles) >= _HANDLES:
            return
        now = self.watched.grammar.made
        pile.again += bool(pile.handles) and now > pile.iteration
        pile.handles.append(handle)
        pile.most = max(pile.most, len(pile.handles))
        pile.iteration = now

    def freeze(self) -> dict[str, Any]:
        """Return the lines with several hooks on the same object."""
        lines: dict[tuple[str, Mark | None], list[_Pile]] = {}
        for (_, name, mark), pile in self._piles.items():
            if pile.again:
                lines.setdefault((name, mark), []).append(pile)
        found = tuple(
            HookPile(
                by=name,
                objects=len(piles),
                hooks=max(each.most for each in piles),
                again=max(each.again for each in piles),
                changes=sum(each.changes for each in piles),
                site=site(mark),
            )
            for (name, mark), piles in lines.items()
        )
        return {HookPiles.signal: HookPiles(found)}


def _examined(hook: Callable[..., Any], pile: _Pile) -> Callable[..., Any]:
    """Return a hook that calls another one, and counts what it changes."""

    @functools.wraps(hook, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return hook(*args, **kwargs)
        before = _values(args[0])
        result = hook(*args, **kwargs)
        if before:
            now = _values(args[0])
            pile.changes += any(not torch.equal(a, b) for a, b in zip(before, now, strict=False))
        else:
            pile.changes += result is not None and result is not args[-1]
        return result

    return call


def _values(owner: Any) -> list[torch.Tensor]:
    """Return some values of what a hook can change in place: parameters and their gradients.

    Args:
        owner: The first argument of a hook; a module's and a gradient's hooks return changes.
    """
    if isinstance(owner, Optimizer):
        parameters = probes(parameters_of(owner))
    elif isinstance(owner, nn.Parameter):
        parameters = [owner]
    else:
        return []
    both = [*parameters, *(each.grad for each in parameters if each.grad is not None)]
    return [each.detach().flatten()[:_VALUES].clone() for each in both if not each.is_sparse]
