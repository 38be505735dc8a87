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
    """Passes the reports on.

    Args:
        rest: Receives them.
        guard: The guard of the watch.
        full: The observer of the full watch.
    """

    def __init__(self, rest: Rest, guard: Guard, full: EngineObserver) -> None:
        # The methods that each step calls ask for the thread alone: doctor does no work of its own
        # as long as it rests.
        self._rest, self._guard, self._full = rest, guard, full

    def runs(self, model: Any, criterion: Any, images: torch.Tensor, labels: torch.Tensor) -> None:
        """A micro-batch is about to run."""
        if get_ident() != self._guard.thread:
            return
        kept = False
        try:  # Nothing listens, so that this need not be told from the loop's work.
            kept = self._rest.keeps(model, criterion, images, labels)
        except Exception as error:  # noqa: BLE001
            self._guard.note(error)
        if not kept:
            self._rest.wake()
            self._full.runs(model, criterion, images, labels)

    def ran(self, loss: torch.Tensor) -> None:
        """A loss was computed."""
        if get_ident() == self._guard.thread:
            self._rest.ran(loss)

    def evaluates(self) -> None:
        """A model is about to be validated."""
        if self._guard.is_here:
            self._rest.wake()

    def calls(self, function: Any, args: tuple[Any, ...], result: torch.Tensor) -> None:
        """A loss was weighted."""
        del result
        if self._guard.is_here:
            self._rest.weighed(function, args[1:])

    def scales(self, scaler: Any, own: Any, loss: torch.Tensor, scaled: torch.Tensor) -> None:
        """A loss was multiplied."""
        del loss, scaled
        if self._guard.is_here:
            self._rest.scaled(scaler, own.scale)

    def begins(self, scaler: Any, weight: Any) -> None:
        """A backward begins with a scale and a weight."""
        if get_ident() != self._guard.thread:
            return
        if weight is not None:
            self._rest.weighed(weight.operation, (weight.number,))
        if scaler is not None:
            self._rest.scaled(scaler, scaler.scale)

    def worked(self) -> None:
        """The engine has ended a step that woke the watch."""
        self._rest.worked()

    def steps(
        self,
        scaler: Any,
        optimizer: Optimizer,
        found_inf: torch.Tensor | None,
        grad_norm: torch.Tensor | None,
        gradients: list[torch.Tensor] | None = None,
    ) -> AbstractContextManager[None]:
        """An optimizer steps inside, or not."""
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
        """The loop leaves a step out."""
        if self._guard.is_here:
            self._rest.wake()
            self._full.drops(optimizer)

    def restores(self, scaler: Any) -> None:
        """A loss scale was loaded."""
        self._full.restores(scaler)

    def closes(self) -> None:
        """An engine is about to undo its recipe."""
        self._full.closes()
