"""The optimizers that the loop makes, changes and loads, and the schedulers that it moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from halfstep.doctor.record.sites import calling_line
from halfstep.doctor.signals.signal import Hook, Signal, defining
from halfstep.doctor.signals.state.facts import innermost, parameters_of, state_step
from halfstep.doctor.signals.values.casts import Casts

if TYPE_CHECKING:
    from collections.abc import Iterator


class Optimizers(Signal):
    """Registers optimizers, and records the moves of their schedulers."""

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the methods of optimizers, except `step`, and of schedulers."""
        yield Hook(Optimizer, "__init__", self.watched.afterwards(self._on_made))
        yield Hook(Optimizer, "add_param_group", self.watched.afterwards(self._on_changed))
        yield Hook(Optimizer, "load_state_dict", self.watched.afterwards(self._on_loaded))
        for kind in defining("step", LRScheduler):
            yield Hook(kind, "step", self.watched.here(self._on_schedule))

    def number(self, optimizer: Optimizer) -> int:
        """Return the number of an optimizer, which is registered if it is new."""
        if optimizer not in self.watched.registry.optimizers:
            self.add(optimizer)
        return self.watched.registry.optimizers.number(optimizer)

    def add(self, optimizer: Optimizer) -> None:
        """Register an optimizer, and follow the gradients of its current parameters."""
        self.watched.registry.optimizer(optimizer)
        self.watched.grammar.follow(optimizer, self.watched.registry.optimizers.number(optimizer))
        self.watched[Casts].trained(parameters_of(optimizer))

    def _on_made(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            self.watched.registry.optimizer(optimizer).mark = calling_line()
            self.add(optimizer)

    def _on_changed(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            if optimizer in self.watched.registry.optimizers:
                self.add(optimizer)

    def _on_loaded(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            notes = self.watched.registry.optimizer(optimizer)
            notes.resumed_at = state_step(optimizer)
            notes.resumed_in = self.watched.grammar.made
            self.watched.tell("on_loaded", optimizer, calling_line())

    def _on_schedule(self, original: Any, scheduler: Any, /, *args: Any, **kwargs: Any) -> Any:
        optimizer = innermost(getattr(scheduler, "optimizer", None))
        initial = getattr(scheduler, "_is_initial", False)
        if self.watched.guard.is_outside and not initial and isinstance(optimizer, Optimizer):
            with self.watched.guard.own():
                self.number(optimizer)
                plateau = isinstance(scheduler, ReduceLROnPlateau)
                self.watched.grammar.scheduled(calling_line(), optimizer, plateau=plateau)
                given = next((each for each in (*args, *kwargs.values())), None)
                self.watched.tell("on_schedule", scheduler, optimizer, calling_line(), given)
        with self.watched.guard.inside():
            return original(scheduler, *args, **kwargs)
