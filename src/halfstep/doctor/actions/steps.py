"""The steps of optimizers, and those that the loop, a scaler or an engine leaves out."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from halfstep.doctor.actions.backwards import Backwards
from halfstep.doctor.actions.hold_back import HoldBack
from halfstep.doctor.actions.measuring import Measuring
from halfstep.doctor.actions.optimizers import Optimizers
from halfstep.doctor.actions.scaling import Scaling
from halfstep.doctor.internals import current_node
from halfstep.doctor.record.sites import calling_line, library_here
from halfstep.doctor.signals.signal import Registration, Signal
from halfstep.doctor.signals.state.facts import gradients_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch.optim import Optimizer

    from halfstep.doctor.signals.watched import Watched
    from halfstep.doctor.tape.guard import Inside


class Steps(Signal):
    """Records each step before and after it.

    Attributes:
        framework: The package that made the first step for the program; "" if the program itself
            made it, None before it.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._optimizers, self._backwards = watched[Optimizers], watched[Backwards]
        self._scaling, self._measuring = watched[Scaling], watched[Measuring]
        self._hold_back = watched[HoldBack]
        self._stepping: list[Inside | None] = []
        self.framework: str | None = None

    def hooks(self) -> Iterator[Registration]:
        """Yield torch's own hooks before and after a step of any optimizer."""
        yield Registration(lambda: register_optimizer_step_pre_hook(self._on_step).remove)
        yield Registration(lambda: register_optimizer_step_post_hook(self._on_stepped).remove)

    def _on_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Record that an optimizer is about to step; with a closure, after its first run.

        Returns:
            None, or the arguments with another closure, which runs the original closure and then
            records the step.
        """
        watched = self.watched
        if not watched.is_here():
            return None
        closure = kwargs.get("closure") or next((each for each in args[1:] if callable(each)), None)
        if closure is None:
            self._about_to_step(optimizer)
        # An optimizer of the program may be wrong around its closure: it is heard as the loop is.
        is_torch_s = type(optimizer).__module__.startswith("torch.")
        inside = watched.guard.inside() if closure is None or is_torch_s else None
        if inside is not None:
            inside.__enter__()
        self._stepping.append(inside)
        if closure is None:
            return None
        runs = [0]

        @functools.wraps(closure)
        def told() -> Any:
            with watched.guard.own():
                self._optimizers.number(optimizer)
                watched.tell("on_closure", optimizer, runs[0])
            try:
                with watched.guard.outside():
                    result = closure()
            except BaseException:  # The step ends here, and torch does not call the other hook.
                self._left()
                raise
            if runs[0] == 0:
                self._about_to_step(optimizer, closure=True)
            runs[0] += 1
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": told}
        return tuple(told if each is closure else each for each in args), kwargs

    def _left(self) -> None:
        inside = self._stepping.pop() if self._stepping else None
        if inside is not None:
            inside.__exit__()

    def _about_to_step(self, optimizer: Optimizer, *, closure: bool = False) -> None:
        watched, in_scaler = self.watched, self._scaling.steps
        with watched.guard.own():
            number = self._optimizers.number(optimizer)
            notes = watched.registry.optimizer(optimizer)
            notes.steps += 1
            mark = calling_line()
            if self.framework is None:
                self.framework = library_here()
            if current_node() is not None:  # A hook steps as soon as a gradient is complete.
                watched.grammar.arrived(optimizer, self._backwards.scale)
            elif not in_scaler:
                watched.grammar.notice_writes(mark)
            if not in_scaler:
                notes.scale = None
            watched.grammar.step(mark, optimizer, by_scaler=in_scaler, closure=closure)
            watched.registry.note_reached(optimizer)
            gradients = gradients_of(optimizer)
            found_inf = getattr(optimizer, "found_inf", None)
            by_scaler = in_scaler or found_inf is not None
            waits = watched.settings.waits
            numbers = self._measuring.take(
                optimizer,
                gradients,
                skipped=False,
                found_inf=found_inf,
                at_once=waits and not (by_scaler or self._hold_back.holds(optimizer)),
            )
            if not in_scaler:
                self._hold_back.hold(optimizer, numbers)
            watched.tell("before_step", optimizer, number, mark)

    def _on_stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Complete the record of a step, after the optimizer has stepped."""
        del args, kwargs
        if not self.watched.is_here():
            return
        self._left()
        self._hold_back.release()
        if self._measuring.has_new_trouble:
            with self.watched.guard.own():
                self._measuring.stepped(optimizer)
        with self.watched.guard.own():
            self.watched.tell("after_step", optimizer)

    def skipped_unscaled(self, optimizer: Optimizer, found_inf: torch.Tensor) -> None:
        """Record that the engine skips a step of unscaled, non-finite gradients."""
        number, mark = self._optimizers.number(optimizer), calling_line()
        self.watched.grammar.notice_writes(mark)
        self.watched.grammar.add("drop", mark, optimizer=number)
        self.watched.registry.optimizer(optimizer).skipped += 1
        self.watched.tell("on_skip", optimizer, found_inf)

    def dropped(self, optimizer: Optimizer) -> None:
        """Record that the loop skips a step on purpose."""
        number = self._optimizers.number(optimizer)
        self.watched.grammar.add("drop", calling_line(), optimizer=number)
        self.watched.tell("on_skip", optimizer, None)
