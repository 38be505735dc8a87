"""Examines the last step of a program: why it failed, or how precise it was."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from halfstep.doctor.actions.functional_steps import FunctionalSteps
from halfstep.doctor.actions.measuring import Measuring
from halfstep.doctor.actions.own_steps import OwnSteps
from halfstep.doctor.internals import raising_function
from halfstep.doctor.record import Ending
from halfstep.doctor.record.called import MESSAGE
from halfstep.doctor.record.sites import passed_optimizer, raising_line, site
from halfstep.doctor.replay.investigation import Investigation
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.values.own_scales import OwnScales
from halfstep.doctor.tensors.nesting import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.signals.watched import Watched
    from halfstep.doctor.tape.tape import Entry


class LastStep(Signal):
    """Looks at the last step when a watch or an engine ends, and notes how the program ended."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._ending = Ending()
        self._seen = -1

    def note_ending(self, error: BaseException) -> None:
        """Note the exception that ended the program."""
        self._ending = Ending(
            type(error).__name__,
            str(error)[:MESSAGE],
            site(raising_line(error.__traceback__)),
            raising_function(error.__traceback__),
            in_optimizer=passed_optimizer(error.__traceback__),
        )

    def look(self) -> None:
        """Examine the last step, unless it was already examined."""
        if self._seen == self.watched.grammar.made:
            return
        self._seen = self.watched.grammar.made
        with self.watched.guard.own():
            self.watched[Measuring].series.settle()
            if self.watched[FunctionalSteps].is_whole:
                self.watched[FunctionalSteps].examine()
            else:
                self._examine()

    def _examine(self) -> None:
        watched, recent = self.watched, self.watched[Measuring].recent
        iteration, entries = watched.grammar.iteration, watched.tape.snapshot()
        ended_well = not self._ending.kind and (
            watched[OwnSteps].have_trained
            or not (any(each.kind == "backward" for each in entries) or watched[OwnScales].dropping)
        )
        if ended_well or not any(each.kind in {"module", "call"} for each in entries):
            if not recent:
                return
            iteration, entries = recent[-1]
        if watched[Investigation].done or watched.tape.missing:
            return
        raised = sys.exc_info()[1]  # An engine may close while an error ends the program.
        if self._ending.kind:
            error = f"{self._ending.kind}: {self._ending.message}"
        else:
            error = "" if raised is None else f"{type(raised).__name__}: {raised}"
        names = watched.registry.names()
        with _trainable(entries):
            watched[Investigation].last(entries, names, iteration, error=error)

    def freeze(self) -> dict[str, Any]:
        """Return how the program ended."""
        return {"ending": self._ending}


@contextmanager
def _trainable(entries: Sequence[Entry]) -> Iterator[None]:
    """Let parameters require gradients again that the program has frozen since the step."""
    models = [each for each in entries if isinstance(each.function, nn.Module)]
    mine = [one for each in models if each.has_gradients for one in each.function.parameters()]
    given = tensors_in([(each.args, each.kwargs) for each in entries])
    frozen = [] if any(each.requires_grad for each in (*mine, *given)) else mine
    frozen = [each for each in frozen if each.is_floating_point()]
    for each in frozen:
        each.requires_grad_()
    try:
        yield
    finally:
        for each in frozen:
            each.requires_grad_(requires_grad=False)
