"""Queries about the order of a loop's actions, shared by several rules."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from halfstep.doctor.record.loop import Event, Loop, Shape
    from halfstep.doctor.record.static import Fact


_CALLS = (
    ("scaler step", r"(?P<scaler>[\w.]+)\.step\((?P<optimizer>[\w.]+)\)"),
    ("scale", r"(?P<scaler>[\w.]+)\.scale\((?P<loss>[\w.]+)\)"),
    ("step", r"^(?P<optimizer>(?!.*\bengine\b)[\w.]+)\.step\(\)"),
    ("backward", r"^(?P<loss>[\w.]+)\.backward\("),
)


@dataclass(frozen=True, slots=True)
class SecondUnscale:
    """A second `unscale_` of the same optimizer without an `update()` in between.

    Attributes:
        shape: The shape of the iteration.
        event: The event of the second `unscale_`.
        in_window: Whether the loop accumulates into the same gradients between the two calls.
        same: Whether no backward ran between the two calls, so that the gradients are the same.
    """

    shape: Shape
    event: Event
    in_window: bool
    same: bool


def second_unscale(loop: Loop) -> SecondUnscale | None:
    """Return the first `unscale_` that repeats another without an `update()` between, or None."""
    for shape in loop.shapes:
        open_: dict[object, bool] = {}
        added = False
        for event in shape.events:
            added |= event.kind == "backward"
            if event.kind == "update":
                open_.clear()
            elif event.kind == "zero" and event.facts["optimizer"] in open_:
                open_[event.facts["optimizer"]] = True
            elif event.kind == "unscale":
                cleared = open_.get(event.facts["optimizer"])
                if cleared is not None:
                    in_window = added and not cleared and _accumulates(loop)
                    return SecondUnscale(shape, event, in_window, same=not added)
                open_[event.facts["optimizer"]] = added = False
    return None


def _accumulates(loop: Loop) -> bool:
    """Return whether a step has several backward passes, or whether no scaler has made a step."""
    stepped = [shape for shape in loop.shapes if shape.complete and shape.of("scaler step")]
    return not stepped or any(len(shape.of("backward")) > 1 for shape in stepped)


def optimizer_name(loop: Loop, number: Fact) -> str:
    """Return the variable name of an optimizer in the program's step call, or "optimizer"."""
    for kind, pattern in (("scaler step", r"\.step\(([\w.]+)"), ("step", r"([\w.]+)\.step\(\)")):
        for _, event in loop.of(kind):
            found = re.search(pattern, event.site.text) if event.site else None
            if found and event.facts["optimizer"] == number:
                return found[1]
    return "optimizer"


def lines_of(loop: Loop) -> set[str]:
    """Return the source text of all lines of the program that caused an event."""
    return {each.site.text for shape in loop.shapes for each in shape.events if each.site}


def names(loop: Loop) -> dict[str, str]:
    """Return the program's variable names of "scaler", "optimizer" and "loss", by these words.

    A word is left out if the program uses no name or several names for it.
    """
    found: dict[str, set[str]] = {"scaler": set(), "optimizer": set(), "loss": set()}
    for kind, pattern in _CALLS:
        for _, event in loop.of(kind):
            match = re.search(pattern, event.site.text) if event.site else None
            for what, name in match.groupdict().items() if match else ():
                found[what].add(name)
    return {what: each.pop() for what, each in found.items() if len(each) == 1}


def raised(loop: Loop, text: str) -> tuple[Shape, Event] | None:
    """Return the first call of a scaler's method that raised an error with this text, or None."""
    return next((pair for pair in loop.of("raised") if text in str(pair[1].facts["error"])), None)


def cleared_after(shape: Shape, event: Event) -> set[str]:
    """Return the optimizers whose gradients were cleared after an event, before any use of them."""
    cleared: set[str] = set()
    used: set[str] = set()
    for each in shape.events[shape.events.index(event) + 1 :]:
        optimizer = str(each.facts.get("optimizer"))
        if each.kind == "zero" and optimizer not in used:
            cleared.add(optimizer)
        elif each.kind in {"unscale", "scaler step", "step", "raised"}:
            used.add(optimizer)
    return cleared


def events_before(shape: Shape, event: Event) -> tuple[Event, ...]:
    """Return the events of an iteration before an event."""
    return shape.events[: shape.events.index(event)]
