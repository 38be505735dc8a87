"""Watches a program from `start` to `close`, and returns the record of evidence.

An ordinary step costs little: the watch records the order of calls, reads version counters and
computes one fused norm. A bad step is investigated as soon as its numbers are read, if possible
before its parameters change.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from halfstep.doctor.internals import keep_compiled_buffers, raising_function
from halfstep.doctor.record import Ending, Evidence, recorded
from halfstep.doctor.record.sites import passed_optimizer, raising_line, site
from halfstep.doctor.signals.facts import environment
from halfstep.doctor.signals.graphs import Graphs
from halfstep.doctor.signals.own_scales import OwnScales
from halfstep.doctor.signals.switched_off import SwitchedOff
from halfstep.doctor.watching.attach import Attachment
from halfstep.doctor.watching.engine import EngineObserver
from halfstep.doctor.watching.receiver import Receiver
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
MESSAGE = 2000

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_active.clear)  # A forked process may have its own watch.


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
        self._receiver = Receiver(hold_back=hold_back, bundle=bundle, waits=waits, child=child)
        self._observer = EngineObserver(self._receiver, self._look_back)
        self._undo: Callable[[], None] | None = None
        self._attachment: Attachment | None = None
        self._ending = Ending()
        self._evidence: Evidence | None = None
        self._seen = -1

    @property
    def note(self) -> str:
        """Why no bundle of a bad step was written; "" if one was, or if no step was bad."""
        return self._receiver.investigation.note

    @property
    def state(self) -> str:
        """The progress in one line; another thread may read it."""
        receiver = self._receiver
        steps, repeats = receiver.grammar.made, receiver.investigation.repeats
        said = [f"{counted(steps, 'step')} watched" if steps else "no optimizer step yet"]
        said += receiver.measuring.series.state
        if repeats is not None:
            said.append(f"examining step {repeats}")
        return ", ".join(said)

    @property
    def troubles(self) -> list[str]:
        """Errors in doctor's own work, with their tracebacks; the program continued."""
        return self._receiver.guard.troubles

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
        self._attachment = Attachment(self._receiver, self._observer)
        self._receiver.listener.start()
        return self

    def know(self, models: list[nn.Module], optimizers: list[Optimizer], scaler: Any) -> None:
        """Register objects that were created before watching began."""
        for model in models:
            self._receiver.registry.model(model)
        for optimizer in optimizers:
            self._receiver.on_new_optimizer(optimizer)
        if scaler is not None:
            self._receiver.scaling.on_new_scaler(scaler)

    def __enter__(self) -> Self:
        if self._attachment is None:
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
        line = site(raising_line(error.__traceback__))
        function = raising_function(error.__traceback__)
        self._ending = Ending(
            type(error).__name__,
            str(error)[:MESSAGE],
            line,
            function,
            in_optimizer=passed_optimizer(error.__traceback__),
        )

    @property
    def saw_nonfinite(self) -> bool:
        """Whether a loss or an optimizer's gradients were not finite."""
        self._receiver.measuring.series.settle()
        return self._receiver.measuring.series.first_bad is not None

    def abandon(self) -> None:
        """Stop watching without a diagnosis; does nothing after `close`."""
        self._end()

    def close(self) -> Evidence:
        """Stop watching, examine the last step, and return the record."""
        if self._evidence is not None:
            return self._evidence
        receiver = self._receiver
        receiver.listener.stop()
        self._look_back()
        try:
            with receiver.guard.own():
                self._evidence = weighed(self._freeze(), receiver)
        finally:
            self._end()
        return self._evidence or Evidence()

    def _end(self) -> None:
        self._receiver.listener.stop()
        if self._attachment is not None:
            self._attachment.remove()
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()
        with _lock:
            if self in _active:
                _active.remove(self)

    def _look_back(self) -> None:
        """Examine the last step, unless it was already examined."""
        receiver = self._receiver
        if self._seen == receiver.grammar.made:
            return
        self._seen = receiver.grammar.made
        with receiver.guard.own():
            receiver.measuring.series.settle()
            self._look_at_last_step()

    def _look_at_last_step(self) -> None:
        receiver = self._receiver
        iteration, entries = receiver.grammar.iteration, receiver.tape.snapshot()
        ended_well = (
            not self._ending.kind
            and not any(each.kind == "backward" for each in entries)
            and not receiver[OwnScales].dropping
        )
        if ended_well or not any(each.kind in {"module", "call"} for each in entries):
            if not receiver.measuring.recent:
                return
            iteration, entries = receiver.measuring.recent[-1]
        if receiver.investigation.done or receiver.tape.missing:
            return
        names = receiver.registry.names()
        raised = sys.exc_info()[1]  # An engine may close while an error ends the program.
        if self._ending.kind:
            error = f"{self._ending.kind}: {self._ending.message}"
        else:
            error = "" if raised is None else f"{type(raised).__name__}: {raised}"
        receiver.investigation.last(entries, names, iteration, error=error)

    def _freeze(self) -> Evidence:
        receiver = self._receiver
        found = receiver.investigation
        return recorded(
            environment=replace(
                environment(receiver.registry.names().values()),
                hold_back=receiver.hold_back.on,
                scaler_off=receiver.scaling.off,
                autocast_off=receiver[SwitchedOff].autocast,
                autocast_on=receiver[SwitchedOff].on,
                graphs=receiver[Graphs].begun,
                framework=receiver.framework or "",
            ),
            static=receiver.registry.freeze(),
            loop=receiver.grammar.freeze(),
            numbers=receiver.measuring.series.freeze(),
            births=tuple(found.births),
            replays=tuple(found.replays),
            precision=found.precision,
            inputs=tuple(found.inputs),
            targets=tuple(found.targets),
            gradients=found.gradients,
            ending=self._ending,
            growth=found.growth,
            children=receiver.children.records(),
            **receiver.freeze(),
        )
