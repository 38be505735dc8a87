"""Collects the events of a loop by iteration; iterations with the same events are stored once."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from halfstep.doctor.record import Event, Loop, Shape
from halfstep.doctor.record.sites import site

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.doctor.record import Discarded, Fact
    from halfstep.doctor.record.sites import Mark

KINDS = {
    "forward": "a model was called for training: model, autocast, differentiable (an input is), "
    "mode (train, eval, or left: in evaluation mode after an evaluation)",
    "scale": "a loss was multiplied: scaler, format, already (part of it was multiplied before)",
    "backward": "scaled, autocast, format, reaches (optimizers), mixed",
    "grad": "autograd.grad was called: scaled, create_graph, half (a format of its graph)",
    "unscale": "scaler, optimizer, again (divided already, by way of another optimizer)",
    "write": "gradients were changed by the loop: optimizer, scaled, linear (by no limit), by",
    "divide": "the loop itself divided gradients by the loss scale: optimizer",
    "hook": "a hook of a parameter limited its scaled gradient: optimizer",
    "read": "the norm of gradients was read by the loop: optimizer, scaled",
    "scaler step": "scaler, optimizer, skipped, again, onto_unscaled, stale, foreign, assigned",
    "step": "optimizer, by_scaler, gradients (none, plain, scaled, unscaled), again, stale, "
    "closure (it runs the backward), assigned (by the loop, not by a backward)",
    "drop": "the loop left the step of an optimizer out: optimizer",
    "raised": "a scaler's call raised: call, error, scaler, optimizer, gradients, foreign",
    "update": "scaler, optimizers, steps, given (the loop gives the loss scale)",
    "zero": "gradients were cleared: optimizer, examined (by a call of torch, before)",
    "schedule": "a scheduler moved: optimizer, skipped (all steps since it moved last), plateau",
}
SHAPES = 64


class Iterations:
    """Collects events in order; `loop` returns them as a `Loop`.

    Attributes:
        iteration: The number of the current iteration, from 0.
        hears: Functions that are called with the kind, the line and the facts of each event.
    """

    def __init__(self) -> None:
        self.iteration = 0
        self.hears: list[Callable[..., None]] = []
        self._events: list[tuple[str, Mark | None, tuple[tuple[str, Fact], ...]]] = []
        self._shapes: OrderedDict[Any, list[int]] = OrderedDict()
        self._stepped = False

    def add(self, kind: str, mark: Mark | None, /, **facts: Fact) -> None:
        """Record an event; the first event of an iteration closes the previous iteration."""
        if self._stepped and kind in {"forward", "scale", "backward", "grad"}:
            self.close_iteration()
        if kind in {"step", "scaler step", "drop"}:
            self._stepped = True
        self._events.append((kind, mark, tuple(facts.items())))
        for hears in self.hears:
            hears(kind, mark, facts)

    def close_iteration(self) -> None:
        """End the current iteration, unless it has no events."""
        self._stepped = False
        if not self._events:
            return
        key = tuple(self._events)
        known = self._shapes.get(key)
        if known is not None:
            known[0] += 1
            known[2] = self.iteration
        elif len(self._shapes) < SHAPES:
            self._shapes[key] = [1, self.iteration, self.iteration]
        self._events = []
        self.iteration += 1

    @property
    def made(self) -> int:
        """Number of iterations with a step."""
        return self.iteration + self._stepped

    @property
    def between_iterations(self) -> bool:
        """Whether the next forward begins a new iteration."""
        return self._stepped or not self._events

    @property
    def has_gradients(self) -> bool:
        """Whether the iteration has a backward pass, and no step yet."""
        return not self._stepped and any(kind == "backward" for kind, _, _ in self._events)

    def stepped_by_hand(self) -> None:
        """End the iteration with the next forward, because the loop itself has made its step."""
        self._stepped = True

    def last_backward(self) -> Mark | None:
        """Return the line of the last backward of the current iteration."""
        return next((mark for kind, mark, _ in reversed(self._events) if kind == "backward"), None)

    def loop(self, discarded: Discarded) -> Loop:
        """Return the events so far.

        Args:
            discarded: Gradients that the loop cleared without using them.
        """
        shapes = [
            Shape(
                tuple(Event(kind, dict(facts), site(mark)) for kind, mark, facts in key),
                count,
                first,
                last,
            )
            for key, (count, first, last) in self._shapes.items()
        ]
        if self._events:  # The current iteration, which no later one has closed.
            events = tuple(
                Event(kind, dict(facts), site(mark)) for kind, mark, facts in self._events
            )
            shapes.append(Shape(events, 1, self.iteration, self.iteration, complete=self._stepped))
        return Loop(self.made, tuple(shapes), discarded)
