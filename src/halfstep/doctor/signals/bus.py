"""Owns the signals, and passes the events of a loop on to those that hear them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from halfstep.doctor.signals import kinds
from halfstep.doctor.signals.signal import EVENTS, Signal
from halfstep.doctor.signals.watched import Watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfstep.doctor.signals.signal import Hook
    from halfstep.doctor.tape.listener import Call

Kind = TypeVar("Kind", bound=Signal)


class Bus(Watched):
    """The state of a watched loop, with its signals.

    Args:
        heard: Called with each call into torch by the loop, and its result.
        about: Called before a call that writes in place, with its name and its arguments.

    Attributes:
        hear: For each event of `Signal`, the methods of the signals that hear it.
    """

    def __init__(
        self,
        heard: Callable[[Call, Any], None],
        about: Callable[[Any, str, tuple[Any, ...]], None],
    ) -> None:
        super().__init__(heard, about)
        self._signals: dict[type[Signal], Signal] = {kind: kind(self) for kind in kinds()}
        self.hear: dict[str, list[Callable[..., None]]] = {
            event: [
                getattr(signal, event)
                for kind, signal in self._signals.items()
                if getattr(kind, event) is not getattr(Signal, event)
            ]
            for event in EVENTS
        }
        self.grammar.hears = self.hear["on_event"]

    def __getitem__(self, kind: type[Kind]) -> Kind:
        """Return the signal of a class."""
        signal = self._signals[kind]
        assert isinstance(signal, kind)
        return signal

    def tell(self, event: str, *args: Any) -> None:
        """Pass an event on to the signals that hear it."""
        for hears in self.hear[event]:
            hears(*args)

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of all signals."""
        for signal in self._signals.values():
            yield from signal.hooks()

    def freeze(self) -> dict[str, Any]:
        """Return what the signals have observed, by their names in the evidence."""
        return {
            name: value
            for signal in self._signals.values()
            for name, value in signal.freeze().items()
        }
