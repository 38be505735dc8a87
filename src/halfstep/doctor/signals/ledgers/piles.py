"""Hooks that a line registers again and again on the same parameters or modules, without removal.

The second and later hooks are wrapped, to see whether they change a gradient or a result.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfstep.doctor.signals.watched import Watched

_PILES = 4096
_HANDLES = 64
_METHODS = (
    (torch.Tensor, "register_hook"),
    (nn.Module, "register_forward_hook"),
    (nn.Module, "register_forward_pre_hook"),
    (nn.Module, "register_full_backward_hook"),
)


@dataclass(frozen=True, slots=True)
class HookPile:
    """A line that registers hooks on objects that still have those of its earlier runs.

    Attributes:
        by: Name of the method.
        objects: Number of parameters or modules.
        hooks: Number of its hooks on one of them, at most.
        again: How often it registered one after further steps, on one of them, at most.
        changes: How often the second and later hooks returned another value.
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
        """Yield the hooks of the methods that register hooks of parameters and modules."""
        for owner, name in _METHODS:
            yield Hook(owner, name, self.watched.here(functools.partial(self._on_register, name)))

    def _on_register(
        self, name: str, original: Any, owner: Any, hook: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        pile = None
        with self.watched.guard.own():
            if isinstance(owner, nn.Module) or (owner.is_leaf and owner.requires_grad):
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
        result = hook(*args, **kwargs)
        if not torch.compiler.is_compiling() and result is not None and result is not args[-1]:
            pile.changes += 1
        return result

    return call
