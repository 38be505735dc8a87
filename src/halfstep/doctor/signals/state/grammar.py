"""Records the actions of a training loop in order, and the state of the gradients.

This module does not compute with tensors or wait for a device. Version counters show whether
gradients were written to. The loss scale of gradients is that of the losses whose backward passes
made them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from halfstep.doctor.signals.state.discards import Discards
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.signals.state.gradients import Gradients, memories, memory, probes
from halfstep.doctor.signals.state.iterations import Iterations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.optim import Optimizer

    from halfstep.doctor.record import Loop
    from halfstep.doctor.record.sites import Mark
    from halfstep.doctor.tape.tape import Multiplier

_CHANGES = frozenset({"backward", "divide", "drop", "scaler step", "step", "unscale", "zero"})
"""Events that change the scale of gradients, or end a step."""


class Grammar(Iterations):
    """Derives the events of a loop and the states of gradients; `freeze` returns a `Loop`.

    Attributes:
        discards: Counts the gradients that the loop clears without using them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._gradients: WeakKeyDictionary[Optimizer, Gradients] = WeakKeyDictionary()
        self._numbers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._since_update: dict[int, list[int]] = {}
        self._factors: dict[Mark | None, float] = {}
        self.discards = Discards()

    def follow(
        self, optimizer: Optimizer, number: int, params: Sequence[torch.Tensor] | None = None
    ) -> None:
        """Follow the gradients of an optimizer, or select its probes again.

        Args:
            optimizer: The optimizer.
            number: Number of the optimizer.
            params: The tensors that receive the gradients; None for the optimizer's own parameters.
        """
        self._numbers[optimizer] = number
        followed = parameters_of(optimizer) if params is None else params
        known = self._gradients.get(optimizer)
        if known is None:
            known = self._gradients[optimizer] = Gradients(probes(followed))
        else:
            known.probes, known.seen = probes(followed), ()
        known.parameters = frozenset(map(id, followed))
        known.repeated = len(known.parameters) < len(followed)

    def state(self, optimizer: Optimizer) -> Gradients:
        """Return the state of an optimizer's gradients."""
        return self._gradients[optimizer]

    def notice_writes(
        self,
        mark: Mark | None,
        written: Iterable[torch.Tensor] = (),
        factor: float | torch.Tensor | None = None,
        by: str = "",
    ) -> None:
        """Record a write for each optimizer whose gradients the loop itself has written to.

        Args:
            mark: The source line of the write.
            written: Tensors that were written to; possibly the `.data` of gradients.
            factor: The factor or divisor of a multiplication or division; None for other writes.
            by: Name of the function that wrote; "" if unknown.
        """
        linear = self._is_linear(mark, factor)
        given = memories(written)
        for optimizer, gradients in self._gradients.items():
            now = gradients.look()
            # Versions do not show writes through `.data` or to gradients that the loop assigned.
            touched = gradients.shares(given)
            if now == gradients.seen:
                if touched:
                    self._written(mark, optimizer, gradients, linear=linear, by=by)
                continue
            changed = touched or any(
                old[0] and old[0] == new[0] and old[1] != new[1]
                for old, new in zip(gradients.seen, now, strict=False)
            )
            gradients.assigned |= any(
                old[0] and new[0] and old[0] != new[0]
                for old, new in zip(gradients.seen, now, strict=False)
            )
            cleared = gradients.seen and not any(identity for identity, _ in now)
            gradients.seen = now
            if cleared:  # The loop has set them to None, in a line that is not known.
                self._forgets(optimizer, gradients)
            elif changed:
                self._written(mark, optimizer, gradients, linear=linear, by=by)

    def _forgets(self, optimizer: Optimizer, gradients: Gradients) -> None:
        if gradients.holds:
            number = self._numbers[optimizer]
            self.add("zero", None, optimizer=number, examined=gradients.examined)
        gradients.forget()

    def divided(self, mark: Mark | None, written: Iterable[torch.Tensor]) -> None:
        """Record that the loop itself has divided these gradients by the loss scale."""
        given = memories(written)
        for optimizer, gradients in self._gradients.items():
            if not gradients.shares(given):
                continue
            number = self._numbers[optimizer]
            if gradients.state() == "scaled" or self._unscales(number):
                self.add("divide", mark, optimizer=number)
                gradients.unscaled = True
            gradients.seen = gradients.look()

    def _unscales(self, optimizer: int) -> bool:
        """Return whether a scaler, and not the loop, has last divided an optimizer's gradients."""
        for kind, _, facts in reversed(self._events):
            is_of_it = kind == "backward" or dict(facts).get("optimizer") == optimizer
            if kind in _CHANGES and is_of_it:
                return kind == "unscale"
        return False

    def limited(self, mark: Mark | None, parameter: torch.Tensor) -> None:
        """Record that a hook of a parameter has limited the scaled gradient of a backward."""
        for optimizer, gradients in self._gradients.items():
            known = any(kind == "hook" and at == mark for kind, at, _ in self._events)
            if id(parameter) in gradients.parameters and not known:
                self.add("hook", mark, optimizer=self._numbers[optimizer])

    def is_stirred(self) -> bool:
        """Return whether any gradients have changed since the last check."""
        return any(each.look() != each.seen for each in self._gradients.values())

    def _is_linear(self, mark: Mark | None, factor: float | torch.Tensor | None) -> bool:
        """Return whether the loss scale of gradients stays valid after a multiplication.

        It stays valid for a mask or a constant, but not for clipping, whose factor depends on the
        gradients. A factor is taken for clipping if it is a 0-dimensional tensor or a number that
        changes between steps, or if the loop has read the norm of the gradients before.
        """
        if factor is None or isinstance(factor, torch.Tensor):
            return factor is not None and factor.ndim > 0
        read = any(kind == "read" and dict(facts)["scaled"] for kind, _, facts in self._events)
        return not read and self._factors.setdefault(mark, factor) == factor

    def _written(
        self,
        mark: Mark | None,
        optimizer: Optimizer,
        gradients: Gradients,
        *,
        linear: bool,
        by: str,
    ) -> None:
        scaled, number = gradients.state() == "scaled", self._numbers[optimizer]
        gradients.spent = False  # The loop changed them on purpose: a reuse is no error.
        self.add("write", mark, optimizer=number, scaled=scaled, linear=linear, by=by)

    def settle(self) -> None:
        """Mark the current gradients as seen, so that their changes do not count as writes."""
        for gradients in self._gradients.values():
            now = gradients.look()
            if now != gradients.seen and not any(identity for identity, _ in now):
                gradients.forget()
            gradients.seen = now

    def accumulated(
        self,
        mark: Mark | None,
        scale: Multiplier | None,
        terms: Sequence[tuple[Multiplier, frozenset[int]]] = (),
        *,
        autocast: bool,
        loss_format: str,
    ) -> None:
        """Record a backward, which made all changes of gradients since the last check.

        Args:
            mark: The source line of the backward.
            scale: The loss scale; None for a loss that was not scaled.
            terms: If several scalers scaled parts of the loss: the scale of each part, and the `id`
                of the parameters that it reaches.
            autocast: Whether the backward ran under autocast.
            loss_format: Format of the tensor that backward was called on.
        """
        reached, mixed = [], False
        for optimizer, gradients in self._gradients.items():
            now = gradients.look()
            if now == gradients.seen:
                continue
            reached.append(self._numbers[optimizer])
            had = any(identity for identity, _ in gradients.seen) and bool(gradients.holds)
            gradients.onto_unscaled |= had and gradients.unscaled and "scaled" in gradients.holds
            gradients.stale |= gradients.spent and gradients.was_added_to(now)
            gradients.by_another = gradients.spent = gradients.claimed = False
            gradients.examined = gradients.assigned = False
            gradients.cleared.clear()
            gradients.note_made()
            mine: list[Multiplier | None] = [
                each for each, leaves in terms if leaves & gradients.parameters
            ]
            for each in mine or [scale]:
                gradients.take(each)
            mixed |= len(gradients.holds) > 1
            gradients.seen, gradients.used = now, False
        self.add(
            "backward",
            mark,
            scaled=scale is not None,
            autocast=autocast,
            format=loss_format,
            reaches=",".join(map(str, sorted(reached))),
            mixed=mixed,
        )

    def arrived(self, optimizer: Optimizer, scale: Multiplier | None) -> None:
        """Note that a backward that still runs has made gradients of an optimizer."""
        gradients = self.state(optimizer)
        gradients.take(scale)
        gradients.seen = gradients.look()

    def unscale(self, mark: Mark | None, scaler: int, optimizer: Optimizer) -> None:
        """Record that the loop calls a scaler's `unscale_`."""
        number, again = self._numbers[optimizer], self.divides_again(optimizer)
        self.add("unscale", mark, scaler=scaler, optimizer=number, again=again)
        self._claim()

    def divides_again(self, optimizer: Optimizer) -> bool:
        """Return whether unscaling an optimizer's gradients divides some of them a second time."""
        gradients = self.state(optimizer)
        return gradients.repeated or gradients.by_another

    def unscaled(self, optimizer: Optimizer) -> None:
        """Mark the gradients of an optimizer as unscaled."""
        mine = self.state(optimizer)
        mine.unscaled, mine.by_another, mine.seen = True, False, mine.look()
        for other, gradients in self._gradients.items():
            if other is not optimizer and mine.parameters & gradients.parameters:
                gradients.unscaled = gradients.by_another = True
                gradients.seen = gradients.look()

    def scaler_stepped(
        self, mark: Mark | None, scaler: int, optimizer: Optimizer, *, skipped: bool, again: bool
    ) -> None:
        """Record a `scaler.step`, after it has run.

        Args:
            mark: The source line.
            scaler: Number of the scaler.
            optimizer: The optimizer.
            skipped: Whether the optimizer did not step.
            again: Whether the scaler divided gradients a second time.
        """
        number = self._numbers[optimizer]
        gradients = self.state(optimizer)
        gradients.unscaled = True
        gradients.seen = gradients.look()
        gradients.waiting[skipped] += 1
        gradients.spent = True
        self._claim()
        self._since_update.setdefault(scaler, []).append(number)
        self.add(
            "scaler step",
            mark,
            scaler=scaler,
            optimizer=number,
            skipped=skipped,
            again=again,
            onto_unscaled=gradients.onto_unscaled,
            stale=gradients.stale,
            foreign=gradients.of_another(scaler),
            assigned=gradients.assigned,
        )

    def raised(
        self, mark: Mark | None, call: str, error: str, scaler: int, optimizer: Optimizer | None
    ) -> None:
        """Record that a scaler's method raised an error, and the state of the gradients."""
        gradients = None if optimizer is None else self.state(optimizer)
        self.add(
            "raised",
            mark,
            call=call,
            error=error,
            scaler=scaler,
            optimizer=None if optimizer is None else self._numbers[optimizer],
            gradients="" if gradients is None else gradients.state(),
            foreign=gradients is not None and gradients.of_another(scaler),
        )

    def step(
        self, mark: Mark | None, optimizer: Optimizer, *, by_scaler: bool, closure: bool = False
    ) -> None:
        """Record that an optimizer is about to step.

        Args:
            mark: The source line.
            optimizer: The optimizer.
            by_scaler: Whether a scaler calls the step.
            closure: Whether the step itself runs the forward and backward passes, in a closure.
        """
        number, gradients = self._numbers[optimizer], self.state(optimizer)
        gradients.seen = gradients.look()
        self.add(
            "step",
            mark,
            optimizer=number,
            by_scaler=by_scaler,
            gradients=gradients.state(),
            again=gradients.used,
            stale=gradients.stale,
            closure=closure,
            assigned=gradients.assigned,
        )
        gradients.used = gradients.spent = True
        gradients.waiting[0] += not by_scaler
        self._claim()

    def waiting(self) -> list[Optimizer]:
        """Return the optimizers whose gradients are scaled, and were not used yet."""
        return [each for each, state in self._gradients.items() if state.waits_for_scaler]

    def _claim(self) -> None:
        self.discards.reset()
        for gradients in self._gradients.values():
            gradients.claimed = True

    def updated(
        self, mark: Mark | None, scaler: int, *, by_loop: bool, given: bool = False
    ) -> None:
        """Record a `scaler.update`; it is an event only if the loop calls it, not the engine."""
        stepped = self._since_update.pop(scaler, [])
        self._claim()
        if not by_loop:
            return
        self.add(
            "update",
            mark,
            scaler=scaler,
            optimizers=",".join(map(str, sorted(set(stepped)))),
            steps=len(stepped),
            given=given,
        )

    def zeroed(self, mark: Mark | None, optimizers: list[Optimizer]) -> None:
        """Record that gradients were cleared, to None or to zero."""
        for optimizer in optimizers:
            gradients = self.state(optimizer)
            self.add("zero", mark, optimizer=self._numbers[optimizer], examined=gradients.examined)
            gradients.forget()

    def zeroed_parameters(self, mark: Mark | None, parameters: Iterable[torch.Tensor]) -> None:
        """Record that the gradients of these parameters were cleared."""
        self._cleared(mark, set(map(id, parameters)))

    def zeroed_gradients(self, mark: Mark | None, tensors: Iterable[torch.Tensor]) -> None:
        """Record that the loop has filled these tensors, possibly gradients, with zeros."""
        given = memories(tensors)
        probes = {id(each): each for state in self._gradients.values() for each in state.probes}
        self._cleared(
            mark,
            {
                key
                for key, each in probes.items()
                if each.grad is not None and memory(each.grad) in given
            },
        )

    def _cleared(self, mark: Mark | None, parameters: set[int]) -> None:
        for optimizer, state in self._gradients.items():
            mine = parameters & {*map(id, state.probes)}
            if not mine:
                continue
            state.cleared |= mine
            if all(each.grad is None or id(each) in state.cleared for each in state.probes):
                self.zeroed(mark, [optimizer])
            else:
                state.seen = state.look()

    def notice_use(
        self, tensors: Sequence[torch.Tensor], made: Sequence[torch.Tensor] = ()
    ) -> None:
        """Note the optimizers with a gradient among the arguments of a function of torch.

        Args:
            tensors: The tensors in the arguments.
            made: The results; a mere view of the gradient is no use of it.
        """
        for gradients in self._gradients.values():
            if gradients.holds and not gradients.examined and gradients.are_among(tensors):
                gradients.examined = not gradients.shares(memories(made))

    def notice_read(self, mark: Mark | None, tensors: Iterable[torch.Tensor]) -> None:
        """Record a read for each optimizer with one of these gradients: the loop takes a norm."""
        given = set(map(id, tensors))
        for optimizer, gradients in self._gradients.items():
            if any(id(probe.grad) in given for probe in gradients.probes if probe.grad is not None):
                scaled = gradients.state() == "scaled"
                self.add("read", mark, optimizer=self._numbers[optimizer], scaled=scaled)

    def scheduled(self, mark: Mark | None, optimizer: Optimizer, *, plateau: bool) -> None:
        """Record that a scheduler of an optimizer advances.

        Args:
            mark: The source line.
            optimizer: The optimizer.
            plateau: Whether the scheduler lowers the rate only when the loss no longer decreases.
        """
        waiting = self.state(optimizer).waiting
        skipped = waiting[0] == 0 and waiting[1] > 0
        waiting[:] = 0, 0
        number = self._numbers[optimizer]
        self.add("schedule", mark, optimizer=number, skipped=skipped, plateau=plateau)

    def freeze(self) -> Loop:
        """Return the events so far."""
        return self.loop(self.discards.freeze())
