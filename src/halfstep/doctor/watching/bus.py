"""Makes the signals, adds their hooks to torch, and lets each hear the events of a loop."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any

from halfstep.doctor import actions, replay, signals, watching
from halfstep.doctor.signals.signal import EVENTS, Signal
from halfstep.doctor.signals.watched import Settings, Watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfstep.doctor.signals.signal import Hook, Registration


@cache
def kinds() -> tuple[type[Signal], ...]:
    """Return the classes of all signals, in the order in which they hear an event."""
    modules = [
        importlib.import_module(each.name)
        for package in (signals, actions, replay, watching)
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    return tuple(
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Signal)
        and kind.__module__ == module.__name__
        and kind is not Signal
    )


class Bus(Watched):
    """The state of a watched loop, with its signals.

    While a program is watched, its calls run the wrappers of the hooks. Each wrapper calls the
    original with the program's arguments. While torch.compile traces a call, it only calls the
    original.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__(settings)
        every = {kind: self[kind] for kind in kinds()}
        self.hear = {
            event: [
                getattr(signal, event)
                for kind, signal in every.items()
                if getattr(kind, event) is not getattr(Signal, event)
            ]
            for event in EVENTS
        }
        self.grammar.hears = self.hear["on_event"]
        self._remove: list[Callable[[], None]] = []

    def hooks(self) -> Iterator[Hook | Registration]:
        """Yield the hooks of all signals."""
        for kind in kinds():
            yield from self[kind].hooks()

    def attach(self) -> None:
        """Add the hooks of all signals."""
        self._remove += [each.add() for each in self.hooks()]

    def detach(self) -> None:
        """Remove all hooks. Wrappers that other code has wrapped stay, and record nothing."""
        self.guard.leave()
        while self._remove:
            self._remove.pop()()

    def freeze(self) -> dict[str, Any]:
        """Return what was observed, by the names of the signals in the evidence."""
        observed = {"static": self.registry.freeze(), "loop": self.grammar.freeze()}
        for kind in kinds():
            with self.guard.own():  # A signal that fails loses only its own record.
                observed |= self[kind].freeze()
        return observed
