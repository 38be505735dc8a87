"""What a signal is: one class that owns its hooks, hears the events of a loop, and freezes.

A watch makes one object of each class that `watching.bus.kinds` finds. An event is passed only to
the classes that override its method, so an event that nothing hears costs nothing.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from halfstep.doctor.record import Fact
    from halfstep.doctor.record.sites import Mark
    from halfstep.doctor.signals.watched import Watched
    from halfstep.doctor.tape.listener import Call


@dataclass(frozen=True, slots=True)
class Hook:
    """A function or method of torch that is wrapped while a program is watched.

    Attributes:
        owner: The module or class that contains it.
        name: Its name.
        make: Returns the wrapper of the original; `Watched.here` makes such a function.
    """

    owner: Any
    name: str
    make: Callable[[Any], Any]

    def add(self) -> Callable[[], None]:
        """Replace the original by its wrapper; return a function that restores the original."""
        owner, name = self.owner, self.name
        inherited = name not in vars(owner)
        original = getattr(owner, name) if inherited else vars(owner)[name]
        ours = self.make(original)
        if callable(ours):
            functools.update_wrapper(ours, original)
        setattr(owner, name, ours)

        def remove() -> None:
            # Other code may have wrapped ours since: ours stays then, and still calls the original.
            if vars(owner).get(name) is not ours:
                return
            if inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

        return remove


@dataclass(frozen=True, slots=True)
class Registration:
    """A hook that torch or halfstep's engine offers itself.

    Attributes:
        add: Adds it, and returns a function that removes it.
    """

    add: Callable[[], Callable[[], None]]


def defining(method: str, kind: type[Any]) -> set[type[Any]]:
    """Return those of a class and its subclasses that define a method themselves."""
    found = {kind} if method in vars(kind) else set()
    return found.union(*(defining(method, each) for each in kind.__subclasses__()))


@dataclass(frozen=True, slots=True)
class Heard:
    """A call of a torch function, or of one of torch's losses, by the loop itself.

    Attributes:
        name: Name of the function, or class of the loss.
        call: The function and its arguments.
        given: The tensors in the arguments.
        halves: The half-precision tensors that it returned or changed in place.
        result: Its result.
        module: The loss; None for a function.
    """

    name: str
    call: Call
    given: list[torch.Tensor]
    halves: list[torch.Tensor]
    result: Any
    module: nn.Module | None = None


class Signal:
    """Observes one matter of a program; the methods for events do nothing by default.

    Args:
        watched: The state of the watched loop.
    """

    def __init__(self, watched: Watched) -> None:
        self.watched = watched

    def hooks(self) -> Iterable[Hook | Registration]:
        """Return the functions of torch that this signal wraps, and its other hooks."""
        return ()

    def on_call(self, heard: Heard) -> None:
        """Hear a call of a torch function by the loop itself."""

    def on_event(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        """Hear an action of the loop: a key of `iterations.KINDS`, its line and its facts."""

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Hear that a backward pass is about to run.

        Args:
            losses: The tensors from which it starts; none if the loop gives their gradients.
        """

    def on_closure(self, optimizer: Optimizer, run: int) -> None:
        """Hear that a step of an optimizer is about to run its closure; runs count from 0."""

    def on_gradient(self, tensor: torch.Tensor) -> None:
        """Hear that the loop reads the gradient of a tensor."""

    def on_read(self, tensor: torch.Tensor) -> None:
        """Hear that the loop makes numbers of Python of a tensor."""

    def on_kept(self, parameters: Sequence[torch.Tensor]) -> None:
        """Hear that the loop has zeroed gradients in place to which it still refers.

        Args:
            parameters: Some of their parameters.
        """

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Hear that an optimizer is about to step."""

    def after_step(self, optimizer: Optimizer) -> None:
        """Hear that an optimizer has stepped."""

    def on_skip(self, optimizer: Optimizer, found_inf: torch.Tensor | None) -> None:
        """Hear that a scaler, an engine or the loop has left out a step.

        Args:
            optimizer: The optimizer, which is registered.
            found_inf: Whether its gradients contained inf or NaN, as a number on the device; None
                if unknown.
        """

    def before_write(
        self, name: str, written: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Hear that the loop is about to write tensors in place, or to assign their `.data`.

        Args:
            name: Name of the function of torch; "data" for an assignment.
            written: The tensors to write.
            values: The other tensors in the arguments.
        """

    def on_trainable(
        self, name: str, tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Hear that the loop is about to set whether tensors require gradients."""

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Hear that the loop has called a model, with or without gradients.

        Args:
            module: The model.
            given: The tensors in its arguments.
            made: The tensors in its result.
        """

    def on_given(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Hear that the loop is about to call a module with gradients, or that a replay does."""

    def on_evaluation(self, module: nn.Module, mark: Mark | None) -> None:
        """Hear that the loop has called a model without gradients."""

    def on_schedule(
        self, scheduler: Any, optimizer: Optimizer, mark: Mark | None, given: Any
    ) -> None:
        """Hear that the loop is about to advance a scheduler.

        Args:
            scheduler: The scheduler.
            optimizer: Its optimizer.
            mark: The line that advances it.
            given: The position, or the metric, that the loop passes to it; None for nothing.
        """

    def on_loaded(self, optimizer: Optimizer, mark: Mark | None) -> None:
        """Hear that a state was loaded into an optimizer."""

    def freeze(self) -> Mapping[str, Any]:
        """Return what was observed as frozen data, by the name of the signal in the evidence."""
        return {}


EVENTS = tuple(name for name in vars(Signal) if name.startswith(("on_", "before_", "after_")))
