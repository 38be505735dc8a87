"""Records when the loop clears gradients, and counts those that nothing has used."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from halfstep.doctor.actions.optimizers import Optimizers
from halfstep.doctor.actions.scaling import Scaling
from halfstep.doctor.internals import users_of_memory
from halfstep.doctor.record.sites import calling_line
from halfstep.doctor.replay.investigation import Investigation
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.signals.state.gradients import probes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.watched import Watched


class Clearing(Signal):
    """Follows `zero_grad`, and gradients that the loop sets to None."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._grammar, self._registry = watched.grammar, watched.registry

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the two methods that clear gradients."""
        yield Hook(nn.Module, "zero_grad", self.watched.here(self._on_zero))
        yield Hook(Optimizer, "zero_grad", self.watched.here(self._on_zero))

    def _on_zero(self, original: Any, owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        kept: list[torch.Tensor] = []
        with self.watched.guard.own():
            self._clears(owner)
            kept = _kept(owner)
        with self.watched.guard.inside():
            result = original(owner, *args, **kwargs)
        with self.watched.guard.own():
            if any(each.grad is not None for each in kept):
                self.watched.tell("on_kept", kept)
            if isinstance(owner, Optimizer):
                self.watched[Optimizers].number(owner)
                self._grammar.zeroed(calling_line(), [owner])
            else:
                self._grammar.zeroed_parameters(calling_line(), owner.parameters())
        return result

    def _clears(self, owner: Optimizer | nn.Module) -> None:
        """Note which parameters had gradients; count scaled gradients that nothing has used.

        Gradients do not count while those of another optimizer wait for a scaler: a backward for
        the other optimizer may have left them.
        """
        self._registry.note_gradients()
        waiting = self._grammar.waiting()
        if not waiting:
            return
        if isinstance(owner, Optimizer):
            cleared = {*map(id, parameters_of(owner))}
        else:
            cleared = {*map(id, owner.parameters())}
        moved = [each for optimizer in waiting for each in parameters_of(optimizer)]
        if not {*map(id, moved)} <= cleared:
            return
        self._discards(waiting, moved, [each.grad for each in moved if each.grad is not None])

    def notice_dropped(self) -> None:
        """Count scaled gradients that nothing has used, and that the loop has set to None."""
        waiting = self._grammar.waiting()
        moved = [each for optimizer in waiting for each in parameters_of(optimizer)]
        if moved and all(each.grad is None for each in moved):
            self._discards(waiting, moved, None)

    def _discards(
        self,
        waiting: list[Optimizer],
        moved: list[torch.Tensor],
        gradients: list[torch.Tensor] | None,
    ) -> None:
        if self._grammar.discards.take(gradients):
            scale = self.watched[Scaling].scale_of(waiting[0])
            self._grammar.discards.note(self._grammar.last_backward(), scale)
            self.watched[Investigation].step(
                self.watched.tape.snapshot(latest=True),
                self._registry.names(),
                self._grammar.iteration,
                "the loop clears gradients with inf or NaN",
                scale=scale,
                moved=moved,
            )


def _kept(owner: Optimizer | nn.Module) -> list[torch.Tensor]:
    """Return some parameters if the program refers to the gradients of all of these.

    Args:
        owner: The optimizer or model whose gradients it is about to clear.
    """
    of_owner = parameters_of(owner) if isinstance(owner, Optimizer) else [*owner.parameters()]
    some = [each for each in probes(of_owner) if each.grad is not None] if of_owner else []
    return some if all(references(each) > _only_reference() for each in some) else []


@functools.cache
def _only_reference() -> int:
    """Return the number of references to a gradient that only its parameter has."""
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros(1)
    return references(parameter)


def references(parameter: torch.Tensor) -> int:
    """Return the number of references to the gradient of a parameter, or to all of its memory."""
    gradient = parameter.grad
    count = sys.getrefcount(gradient)
    return count if gradient is None else count + users_of_memory(gradient)
