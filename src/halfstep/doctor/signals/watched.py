"""The state of a watched loop that all signals share, and the wrappers for their hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch

from halfstep.doctor.internals import is_tracing
from halfstep.doctor.signals.state.grammar import Grammar
from halfstep.doctor.signals.state.registry import Registry
from halfstep.doctor.tape.guard import Guard
from halfstep.doctor.tape.listener import Listener
from halfstep.doctor.tape.modules import ModuleStack
from halfstep.doctor.tape.tape import Tape
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.attempts import Suggestion

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a watch may do.

    Attributes:
        hold_back: Whether fused optimizers skip bad steps.
        bundle: Directory to which the first bad step that can be recorded is written; None to write
            none.
        waits: Whether to wait for an accelerator in each step that nothing undoes if it is bad.
        child: Makes the watch of a process that the program starts; None to watch none.
        suggest: Returns the changes that rules suggest for the evidence of a bad step; they are
            tried.
    """

    hold_back: bool = False
    bundle: Path | None = None
    waits: bool = False
    child: Callable[[], Any] | None = None
    suggest: Callable[[Evidence], Sequence[Suggestion]] | None = None


class Watched:
    """The state of a watched loop; `watched[kind]` is its signal of a class.

    Args:
        settings: What the watch may do.

    Attributes:
        guard: Distinguishes doctor's own work from the loop's.
        listener: Hears the calls into torch.
        stack: The modules that run while a step is traced.
        tape: The calls of the current step, for a replay.
        grammar: The actions of the loop in order.
        registry: Models, optimizers, scalers.
        hear: For each event of `Signal`, the methods of the signals that hear it.
        has_ended: Whether a step without an optimizer has ended, and the next call begins another.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.listener = Listener()
        self.guard = Guard(self.listener)
        self.stack = ModuleStack()
        self.tape = Tape()
        self.grammar = Grammar()
        self.registry = Registry()
        self.hear: dict[str, list[Callable[..., None]]] = {}
        self._signals: dict[type[Any], Any] = {}
        self.has_ended = False
        self._begun = -1

    def __getitem__(self, kind: type[Kind]) -> Kind:
        """Return the signal of a class, which is made when it is first asked for."""
        if kind not in self._signals:
            make: Callable[[Watched], Kind] = kind
            self._signals[kind] = make(self)
        signal: Kind = self._signals[kind]
        return signal

    def tell(self, event: str, *args: Any) -> None:
        """Pass an event on to the signals that hear it; one that fails does not stop the others."""
        for hears in self.hear[event]:
            try:
                hears(*args)
            except Exception as error:  # noqa: BLE001
                self.guard.note(error)

    def begin(self) -> None:
        """Begin an iteration on the tape, if the next event begins one."""
        # Calls of functions are not events: only the first one of an iteration begins it.
        is_new = self.grammar.between_iterations and self._begun != self.grammar.made
        if is_new or self.has_ended:
            self._begun, self.has_ended = self.grammar.made, False
            self.tape.next_iteration()

    # ------------------------------------------------------------ which code runs

    def is_outside(self) -> bool:
        """Return whether the loop itself runs, not a model, an optimizer, doctor or a trace."""
        # Whatever doctor computed would become a part of the traced graph.
        return self.guard.is_outside and not is_tracing()

    def is_here(self) -> bool:
        """Return whether this is the loop's thread outside doctor's work, or a traced replay."""
        return self.guard.is_here or (self.stack.on and self.guard.is_own)

    def is_in_loop(self) -> bool:
        """Return whether the loop itself runs, in the thread that doctor watches."""
        return self.guard.is_here and self.is_outside()

    # ------------------------------------------------------------ wrappers

    def here(self, told: Callable[..., Any]) -> Callable[[Any], Any]:
        """Return the `make` of a hook that calls `told(original, *args)` in the loop's thread."""
        return _around(told, self.is_here)

    def in_loop(self, told: Callable[..., Any]) -> Callable[[Any], Any]:
        """Return the `make` of a hook that calls `told(original, *args)` for a call by the loop."""
        return _around(told, self.is_in_loop)

    def afterwards(self, told: Callable[..., None]) -> Callable[[Any], Any]:
        """Return the `make` of a hook that calls the original, and then `told(*args)`."""

        def tell(original: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            told(*args, **kwargs)
            return result

        return _around(tell, self.is_here)


def _around(told: Callable[..., Any], runs: Callable[[], bool]) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not runs():
                return original(*args, **kwargs)
            return told(original, *args, **kwargs)

        return call

    return make
