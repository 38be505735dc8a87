"""The reports of halfstep's engine: its loss scaling and its steps become actions of the loop.

Other changes that the engine makes to gradients are not actions of the loop.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from halfstep.doctor.actions.hearing import Hearing
from halfstep.doctor.actions.last_step import LastStep
from halfstep.doctor.actions.measuring import Measuring
from halfstep.doctor.actions.scaling import Scaling
from halfstep.doctor.actions.steps import Steps
from halfstep.doctor.record.sites import calling_line
from halfstep.doctor.signals.signal import Registration, Signal
from halfstep.doctor.tape.listener import Call
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.step_observer import StepObserver, observe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch.optim import Optimizer

    from halfstep.doctor.signals.state.grammar import Grammar
    from halfstep.doctor.signals.watched import Watched
    from halfstep.doctor.tape.guard import Guard

_NOTHING = nullcontext()


class _Work:
    """A block of the engine's own work; changes before the block are changes by the loop."""

    __slots__ = ("_grammar", "_guard", "_inside")

    def __init__(self, guard: Guard, grammar: Grammar) -> None:
        self._guard, self._grammar = guard, grammar

    def __enter__(self) -> None:
        # Mute the listener first, so that `guard.own` need not mute it again.
        self._inside = self._guard.inside()
        self._inside.__enter__()
        with self._guard.own():
            if self._grammar.is_stirred():
                self._grammar.notice_writes(calling_line())

    def __exit__(self, *_: object) -> None:
        with self._guard.own():
            self._grammar.settle()
        self._inside.__exit__()


class EngineObserver(Signal, StepObserver):
    """Passes on the reports of an engine in the loop's thread."""

    listens = True

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._params: WeakKeyDictionary[Optimizer, Sequence[torch.Tensor]] = WeakKeyDictionary()

    def hooks(self) -> Iterator[Registration]:
        """Yield the engine's hook for observers of its steps."""
        yield Registration(lambda: observe(self))

    def work(self) -> AbstractContextManager[None]:
        """Return a context for the engine's own work."""
        guard = self.watched.guard
        outside = guard.is_here and guard.is_outside
        return _Work(guard, self.watched.grammar) if outside else _NOTHING

    def aside(self) -> AbstractContextManager[None]:
        """Return a context in which calls are not recorded."""
        guard = self.watched.guard
        return guard.inside() if guard.is_here and guard.is_outside else _NOTHING

    def calls(self, function: Any, args: tuple[Any, ...], result: torch.Tensor) -> None:
        """Record that a loss was weighted."""
        if self.watched.guard.is_here:
            with self.watched.guard.own():
                call = Call(function, args, {}, None)
                self.watched[Hearing].record(call, tensors_in(args), [result])

    def scales(self, scaler: Any, own: Any, loss: torch.Tensor, scaled: torch.Tensor) -> None:
        """Record that a loss was multiplied by a loss scale."""
        if not self.watched.guard.is_here:
            return
        with self.watched.guard.own():
            scaling = self.watched[Scaling]
            # The engine casts a half-precision loss to fp32 before it multiplies the loss.
            scaling.close(scaling.open(loss), scaler, own.scale, loss, scaled, given=scaled)

    def accumulates(self, optimizer: Optimizer, params: Sequence[torch.Tensor]) -> None:
        """Follow the parameters in which a backward accumulates an optimizer's gradients."""
        if self._params.get(optimizer) is params or not self.watched.guard.is_here:
            return
        self._params[optimizer] = params
        with self.watched.guard.own():
            registry = self.watched.registry
            registry.optimizer(optimizer).params = list(params)
            self.watched.grammar.follow(
                optimizer, registry.optimizers.number(optimizer), list(params)
            )

    def unscales(self, scaler: Any, optimizer: Optimizer) -> None:
        """Record that the gradients of an optimizer are unscaled."""
        del scaler
        if self.watched.guard.is_here:
            with self.watched.guard.own():
                self.watched.grammar.unscaled(optimizer)

    def steps(
        self,
        scaler: Any,
        optimizer: Optimizer,
        found_inf: torch.Tensor | None,
        grad_norm: torch.Tensor | None,
        *,
        finite: bool = False,
    ) -> AbstractContextManager[None]:
        """Return a context in which an optimizer steps, or skips the step."""
        if not self.watched.guard.is_here:
            return _NOTHING
        return self._steps(scaler, optimizer, found_inf, grad_norm, finite=finite)

    @contextmanager
    def _steps(
        self,
        scaler: Any,
        optimizer: Optimizer,
        found_inf: torch.Tensor | None,
        grad_norm: torch.Tensor | None,
        *,
        finite: bool,
    ) -> Iterator[None]:
        watched, measuring = self.watched, self.watched[Measuring]
        measuring.known_norm, measuring.series.finite = grad_norm, finite
        measuring.series.checked = scaler is None and found_inf is not None
        try:
            if scaler is None:
                before = self._steps_of(optimizer)
                yield
                if found_inf is not None and self._steps_of(optimizer) == before:
                    with watched.guard.own():
                        watched[Steps].skipped_unscaled(optimizer, found_inf)
                return
            with watched[Scaling].step(scaler, optimizer, calling_line(), lambda: found_inf):
                yield
        finally:
            measuring.known_norm = None
            measuring.series.checked = measuring.series.finite = False

    def _steps_of(self, optimizer: Optimizer) -> int:
        optimizers = self.watched.registry.optimizers
        return optimizers[optimizer].steps if optimizer in optimizers else 0

    def drops(self, optimizer: Optimizer) -> None:
        """Record that the loop skips a step."""
        if self.watched.guard.is_here:
            with self.watched.guard.own():
                self.watched[Steps].dropped(optimizer)

    def updates(self, scaler: Any) -> None:
        """Record that a loss scale may have changed."""
        if self.watched.guard.is_here:
            with self.watched.guard.own():
                self.watched[Scaling].updated(None, scaler, by_loop=False)

    def restores(self, scaler: Any) -> None:
        """Record that the state of a loss scale was loaded."""
        if self.watched.guard.is_here:
            with self.watched.guard.own():
                self.watched.registry.scaler(scaler).restored = True

    def closes(self) -> None:
        """Examine the last step, before an engine undoes its recipe."""
        if self.watched.guard.is_here:
            self.watched[LastStep].look()
