"""What a loop did, in its order: events, and the shapes of iterations that they make."""

from __future__ import annotations

from dataclasses import dataclass

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time
from halfstep.doctor.record.static import Fact  # noqa: TC001  # pydantic reads it at run time
from halfstep.plurals import counted


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the loop did, in its order.

    Attributes:
        kind: One of `grammar.KINDS`.
        facts: What it was done to, and in which state.
        site: The line that did it.
    """

    kind: str
    facts: dict[str, Fact]
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """An iteration's events; iterations that do the same share one shape.

    Attributes:
        events: In order.
        count: How many iterations had it.
        first: Number of the first that had it.
        last: Number of the last that had it.
        complete: Whether it came to a step; the last one may not have.
    """

    events: tuple[Event, ...]
    count: int
    first: int
    last: int
    complete: bool = True

    def of(self, kind: str) -> list[Event]:
        """Return its events of one kind."""
        return [event for event in self.events if event.kind == kind]


@dataclass(frozen=True, slots=True)
class Loop:
    """The order of what a loop did.

    Attributes:
        iterations: How many there were; one ends with an update of parameters.
        shapes: The different ones, in order of first appearance.
    """

    iterations: int = 0
    shapes: tuple[Shape, ...] = ()

    def of(self, kind: str) -> list[tuple[Shape, Event]]:
        """Return every event of one kind with the shape that it is in."""
        return [(shape, event) for shape in self.shapes for event in shape.of(kind)]

    def count(self, kind: str, **facts: Fact) -> int:
        """Return how often an event of a kind with these facts happened, over all iterations."""
        return sum(
            shape.count
            for shape, event in self.of(kind)
            if all(event.facts.get(name) == value for name, value in facts.items())
        )

    def share(self, event: Event, *facts: str) -> str:
        """Return in how many iterations the same happened, as text: "in 3 of 4 steps".

        People count steps: an iteration is one, with all its micro-batches.

        Args:
            event: What happened.
            facts: Names of the facts that have to be as they are in the event.
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
        # An error may have ended the last of them before its step, which `iterations` leaves out.
        unfinished = sum(shape.count for shape in same if not shape.complete)
        total = counted(self.iterations + unfinished, "step")
        return f"in {sum(shape.count for shape in same)} of {total}"
