"""Watches a program from `start` to `close`, and returns the record of evidence.

An ordinary step costs little: the watch records the order of calls, reads version counters and
computes one fused norm. A bad step is investigated as soon as its numbers are read, if possible
before its parameters change.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from halfstep.doctor.actions.last_step import LastStep
from halfstep.doctor.actions.measuring import Measuring
from halfstep.doctor.actions.optimizers import Optimizers
from halfstep.doctor.actions.scaling import Scaling
from halfstep.doctor.internals import keep_compiled_buffers
from halfstep.doctor.record import Evidence, recorded
from halfstep.doctor.replay.investigation import Investigation
from halfstep.doctor.report.suggestion import suggested
from halfstep.doctor.signals.watched import Settings
from halfstep.doctor.watching.bus import Bus
from halfstep.doctor.watching.weighing import weighed
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from torch import nn
    from torch.optim import Optimizer

_lock = threading.Lock()
_active: list[Watch] = []


def _forget_in_child() -> None:
    """Stop listening in a forked worker of a data loader; it may have its own watch."""
    while _active:
        _active.pop().bus.guard.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


class Watch:
    """Watches training in this thread.

    Args:
        hold_back: Whether fused optimizers skip bad steps. This changes the results after a bad
            step.
        bundle: Directory to which a bad step is written, to be replayed elsewhere; None to write
            none.
        waits: Whether to wait for an accelerator before each step that nothing undoes if it is bad.
            A bad step can then be repeated from the parameters before its update.
        children: Whether the processes that the program starts are watched, too.

    Attributes:
        bus: The state of the loop, with its signals.

    Raises:
        ValueError: From `start`, if another watch is active.
    """

    def __init__(
        self,
        *,
        hold_back: bool = False,
        bundle: Path | None = None,
        waits: bool = False,
        children: bool = False,
    ) -> None:
        child = partial(Watch, waits=waits) if children else None
        self.bus = Bus(Settings(hold_back, bundle, waits, child, suggested))
        self._is_started = False
        self._undo: Callable[[], None] | None = None
        self._evidence: Evidence | None = None

    @property
    def note(self) -> str:
        """Why no bundle of a bad step was written; "" if one was, or if no step was bad."""
        return self.bus[Investigation].note

    @property
    def state(self) -> str:
        """The progress in one line; another thread may read it."""
        steps, repeats = self.bus.grammar.made, self.bus[Investigation].repeats
        said = [f"{counted(steps, 'step')} watched" if steps else "no optimizer step yet"]
        said += self.bus[Measuring].series.state
        if repeats is not None:
            said.append(f"examining step {repeats}")
        return ", ".join(said)

    @property
    def troubles(self) -> list[str]:
        """Errors in doctor's own work, with their tracebacks; the program continued."""
        return self.bus.guard.troubles

    @property
    def failure(self) -> str:
        """One line on the errors in doctor's own work; "" without any."""
        if not self.troubles:
            return ""
        return (
            f"doctor itself failed {counted(len(self.troubles), 'time')}, so its diagnosis may be "
            f"incomplete; the first error: {self.troubles[0].strip().splitlines()[-1]}"
        )

    def start(self) -> Watch:
        """Start watching, and return the watch."""
        with _lock:
            if _active:
                raise ValueError("this process is already watched; close() the other watch first")
            _active.append(self)
        self._undo = keep_compiled_buffers()
        self._is_started = True
        self.bus.attach()
        self.bus.listener.start()
        return self

    def know(self, models: list[nn.Module], optimizers: list[Optimizer], scaler: Any) -> None:
        """Register objects that were created before watching began."""
        with self.bus.guard.own():
            for model in models:
                self.bus.registry.model(model)
            for optimizer in optimizers:
                self.bus[Optimizers].add(optimizer)
        if scaler is not None:
            self.bus[Scaling].on_new_scaler(scaler)

    def __enter__(self) -> Self:
        if not self._is_started:
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.note_ending(error)
        self.close()

    def note_ending(self, error: BaseException) -> None:
        """Note the exception that ended the program."""
        self.bus[LastStep].note_ending(error)

    @property
    def saw_nonfinite(self) -> bool:
        """Whether a loss or an optimizer's gradients were not finite."""
        series = self.bus[Measuring].series
        series.settle()
        return series.first_bad is not None

    def abandon(self) -> None:
        """Stop watching without a diagnosis; does nothing after `close`."""
        self._end()

    def close(self) -> Evidence:
        """Stop watching, examine the last step, and return the record."""
        if self._evidence is not None:
            return self._evidence
        self.bus.listener.stop()
        self.bus[LastStep].look()
        try:
            with self.bus.guard.own():
                self._evidence = weighed(recorded(**self.bus.freeze()), self.bus)
        finally:
            self._end()
        return self._evidence or Evidence()

    def _end(self) -> None:
        self.bus.listener.stop()
        if self._is_started:
            self.bus.detach()
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()
        with _lock:
            if self in _active:
                _active.remove(self)
