"""The actions of a loop in order: events, and the shapes of iterations."""

from __future__ import annotations

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time
from halfstep.doctor.record.static import Fact  # noqa: TC001  # pydantic reads it at run time
from halfstep.lazy_dataclass import dataclass
from halfstep.plurals import counted


@dataclass(frozen=True, slots=True)
class Event:
    """One action of the loop.

    Attributes:
        kind: A key of `signals.state.iterations.KINDS`, where the facts of each kind are listed.
        facts: The objects that take part in the action, by number, and their state.
        site: The line of the action; None if unknown.
    """

    kind: str
    facts: dict[str, Fact]
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The events of an iteration; iterations with the same events share one shape.

    Attributes:
        events: The events in order.
        count: Number of iterations with this shape.
        first: Number of the first of these iterations, from 0.
        last: Number of the last of these iterations.
        complete: Whether the events contain a step; those of the last iteration may not.
    """

    events: tuple[Event, ...]
    count: int
    first: int
    last: int
    complete: bool = True

    def of(self, kind: str) -> list[Event]:
        """Return the events of one kind."""
        return [event for event in self.events if event.kind == kind]


@dataclass(frozen=True, slots=True)
class Discarded:
    """Scaled gradients with inf or NaN that the loop cleared before anything used them.

    Attributes:
        count: How often in a row, up to the end of the program; 0 for fewer than four times.
        scale: Their loss scale; None if unknown.
        site: The line of a backward that made them.
    """

    count: int = 0
    scale: float | None = None
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """The actions of a loop, in order.

    Attributes:
        iterations: Number of iterations that end with a step.
        shapes: The different shapes of iterations, in order of first appearance.
        discarded: Gradients that the loop cleared at the end of the program without using them.
    """

    iterations: int = 0
    shapes: tuple[Shape, ...] = ()
    discarded: Discarded = Discarded()

    def of(self, kind: str) -> list[tuple[Shape, Event]]:
        """Return every event of one kind, with its shape."""
        return [(shape, event) for shape in self.shapes for event in shape.of(kind)]

    def count(self, kind: str, **facts: Fact) -> int:
        """Return how often an event of a kind with these facts happened, over all iterations."""
        return sum(
            shape.count
            for shape, event in self.of(kind)
            if all(event.facts.get(name) == value for name, value in facts.items())
        )

    def share(self, event: Event, *facts: str) -> str:
        """Return how many iterations contain the same event, as text: "in 3 of 4 steps".

        An iteration, with all its micro-batches, is one step.

        Args:
            event: The event.
            facts: Names of the facts that must be the same.
        """
        same = [
            shape
            for shape in self.shapes
            if any(
                each.site == event.site
                and all(each.facts.get(name) == event.facts.get(name) for name in facts)
                for each in shape.of(event.kind)
            )
        ]
        # `iterations` does not count a last iteration that an error ended before its step.
        unfinished = sum(shape.count for shape in same if not shape.complete)
        total = counted(self.iterations + unfinished, "step")
        return f"in {sum(shape.count for shape in same)} of {total}"
