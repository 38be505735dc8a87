"""The steps of a loop that updates its weights itself, in a program without an optimizer.

Such a step ends with a backward pass, or with a call of `autograd.grad` for weights. Its numbers
are those of an optimizer that is not known, and it is examined as other steps are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.actions.measuring import Measuring
from halfstep.doctor.record.contributions import OwnStepLedger
from halfstep.doctor.record.sites import calling_line, site
from halfstep.doctor.signals.ledgers.followers import address
from halfstep.doctor.signals.movement.directions import Directions
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tape.tape import given_tensors
from halfstep.doctor.tensors.elements import some
from halfstep.doctor.tensors.nesting import tensors_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.doctor.record import Fact
    from halfstep.doctor.record.sites import Mark
    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

WEIGHTS, ELEMENTS = 8, 16
_ARGUMENTS = ("outputs", "inputs", "grad_outputs")  # of `autograd.grad`


class OwnSteps(Signal):
    """Measures the steps of such a loop."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._measuring = watched[Measuring]
        self._count = 0
        self._first: list[torch.Tensor] = []
        self._last: list[torch.Tensor] = []
        self._held: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._stale: torch.Tensor | int = 0
        self._steps = 0
        self._mark: Mark | None = None

    @property
    def _are_own(self) -> bool:
        registry = self.watched.registry  # A scaler is for an optimizer that may not be known yet.
        return not (registry.optimizers.notes or registry.scalers.notes)

    @property
    def have_trained(self) -> bool:
        """Whether there are such steps, and a weight has changed between them."""
        pairs = zip(self._first, self._last, strict=False)
        return self._are_own and any(not torch.equal(one, other) for one, other in pairs)

    @property
    def _losses(self) -> list[torch.Tensor]:
        return [] if self._measuring.loss is None else [self._measuring.loss]

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Compare weights and gradients with those after the backward pass before."""
        del losses
        stale: torch.Tensor | bool = False
        for weight, before, gradient in self._held if self._are_own else ():
            if weight.grad is not None and weight.grad.shape == weight.shape:
                is_kept = (some(weight.grad, ELEMENTS) == gradient).all() & gradient.any()
                stale = stale | ((some(weight, ELEMENTS) != before).any() & is_kept)
        self._stale = self._stale + stale * 1

    def on_event(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        """Measure the step of a backward pass."""
        del facts
        if kind != "backward" or not self._are_own:
            return
        mine = [*self.watched.registry.names().values()]
        given = [
            *mine,
            *(each for _, each in given_tensors(self.watched.tape.snapshot()) if each.is_leaf),
        ]
        found = {id(each): each for each in given if each.requires_grad}
        weights = [*found.values()]
        gradients = [each.grad for each in weights if each.grad is not None]
        self._end(weights, gradients)
        mine = [each for each in mine if each.grad is not None]
        slopes = [each.grad for each in mine if each.grad is not None]
        self.watched[Directions].take(mine, slopes, self._losses)
        self._steps, self._mark = self._steps + 1, mark
        self._held = [
            (each, some(each, ELEMENTS).clone(), some(each.grad, ELEMENTS).clone())
            for each in weights[:WEIGHTS]
            if each.grad is not None and each.grad.layout is torch.strided
        ]

    def on_call(self, heard: Heard) -> None:
        """Measure the step of a call of `autograd.grad` for weights."""
        args, kwargs = heard.call.args, heard.call.kwargs
        if heard.call.function is not torch.autograd.grad or not self._are_own:
            return
        given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        weights = tensors_in(given["inputs"])
        if kwargs.get("create_graph") or not all(each.is_leaf for each in weights):
            return
        outputs, tape = tensors_in(given["outputs"]), self.watched.tape
        directions = given.get("grad_outputs")
        entry = tape.open("backward", None, (outputs,), {"grad_tensors": directions})
        entry.mark, entry.value = calling_line(), outputs[0].detach()
        tape.close(entry, None, None)
        self._measuring.loss = entry.value if outputs[0].numel() == 1 else None
        slopes = tensors_in(heard.result)
        self._end(weights, slopes)
        mine = {id(each) for each in self.watched.registry.names().values()}
        if len(slopes) == len(weights) and all(id(each) in mine for each in weights):
            self.watched[Directions].judge(outputs)
            self.watched[Directions].take(weights, slopes, self._losses)

    def before_write(
        self, name: str, written: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """End the iteration at the first write to weights since a backward pass."""
        del name, values
        grammar = self.watched.grammar
        if self._are_own and grammar.has_gradients:
            given = {address(each) for each in written} - {0}
            if any(address(each) in given for each in self.watched.registry.loose):
                grammar.stepped_by_hand()

    def _end(self, weights: Sequence[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        registry = self.watched.registry
        registry.loose = [*weights]
        self._last = [some(each, ELEMENTS).clone() for each in weights[:WEIGHTS]]
        if not self._count:
            self._first = self._last
            registry.sizes.start(weights)
        self._measuring.take_own(self._count, gradients)
        self._count += 1
        self.watched.has_ended = True

    def freeze(self) -> dict[str, Any]:
        """Return the steps; reads how many used gradients again."""
        own = OwnStepLedger(self._steps, int(self._stale), site(self._mark))
        return {OwnStepLedger.signal: own if self._are_own else OwnStepLedger()}
