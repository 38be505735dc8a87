"""Receives the engine's reports while a watch rests."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

from halfstep.step_observer import NOTHING, StepObserver

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from torch.optim import Optimizer

    from halfstep.doctor.tape.guard import Guard
    from halfstep.doctor.watching.engine import EngineObserver
    from halfstep.doctor.watching.resting import Rest


class RestingObserver(StepObserver):
    """Passes the engine's reports on to `Rest`, and ends the rest when a step is not ordinary.

    Args:
        rest: Receives the reports.
        guard: The guard of the watch.
        full: The observer of the full watch; receives the reports that end a rest.
    """

    def __init__(self, rest: Rest, guard: Guard, full: EngineObserver) -> None:
        # The methods that run in each step check only the thread, not `guard.is_here`: doctor does
        # no work of its own during a rest.
        self._rest, self._guard, self._full = rest, guard, full

    def runs(self, model: Any, criterion: Any, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Keep the inputs of a micro-batch before it runs, or end the rest."""
        if get_ident() != self._guard.thread:
            return
        kept = False
        try:  # No hook is active, so `guard.own` is not needed.
            kept = self._rest.keeps(model, criterion, images, labels)
        except Exception as error:  # noqa: BLE001
            self._guard.note(error)
        if not kept:
            self._rest.wake()
            self._full.runs(model, criterion, images, labels)

    def ran(self, loss: torch.Tensor) -> None:
        """Note the loss of a micro-batch."""
        if get_ident() == self._guard.thread:
            self._rest.ran(loss)

    def evaluates(self) -> None:
        """End the rest before a model is validated."""
        if self._guard.is_here:
            self._rest.wake()

    def calls(self, function: Any, args: tuple[Any, ...], result: torch.Tensor) -> None:
        """Note the weighting of a loss."""
        del result
        if self._guard.is_here:
            self._rest.weighed(function, args[1:])

    def scales(self, scaler: Any, own: Any, loss: torch.Tensor, scaled: torch.Tensor) -> None:
        """Note the loss scale that multiplied a loss."""
        del loss, scaled
        if self._guard.is_here:
            self._rest.scaled(scaler, own.scale)

    def begins(self, scaler: Any, weight: Any) -> None:
        """Note the loss scale and the weight in the initial gradient of a backward."""
        if get_ident() != self._guard.thread:
            return
        if weight is not None:
            self._rest.weighed(weight.operation, (weight.number,))
        if scaler is not None:
            self._rest.scaled(scaler, scaler.scale)

    def worked(self) -> None:
        """Note that the engine has finished the step that ended the rest."""
        self._rest.worked()

    def steps(
        self,
        scaler: Any,
        optimizer: Optimizer,
        found_inf: torch.Tensor | None,
        grad_norm: torch.Tensor | None,
        gradients: list[torch.Tensor] | None = None,
    ) -> AbstractContextManager[None]:
        """Record an ordinary step, or end the rest; return a context for the step."""
        if get_ident() != self._guard.thread:
            return NOTHING
        passed = False
        try:
            passed = self._rest.passes(optimizer, found_inf, grad_norm, gradients)
        except Exception as error:  # noqa: BLE001
            self._guard.note(error)
        if passed:
            return NOTHING
        self._rest.wake(steps=True)
        if scaler is not None:
            self._full.unscales(scaler, optimizer)
        return self._full.steps(scaler, optimizer, found_inf, grad_norm)

    def drops(self, optimizer: Optimizer) -> None:
        """End the rest, and record that the loop skips a step."""
        if self._guard.is_here:
            self._rest.wake()
            self._full.drops(optimizer)

    def restores(self, scaler: Any) -> None:
        """Record that the state of a loss scale was loaded."""
        self._full.restores(scaler)

    def closes(self) -> None:
        """Examine the last step, before an engine undoes its recipe."""
        self._full.closes()
