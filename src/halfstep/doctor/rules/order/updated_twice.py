"""`scaler.update()` is called more than once an iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.order import events_before, raised
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Event, Evidence, Loop, Shape

_CHANGE = (
    "  scaler.step(optimizer_a)",
    "- scaler.update()",
    "  scaler.step(optimizer_b)",
    "  scaler.update()",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find two updates of one scaler in an iteration."""
    loop = evidence.loop
    for shape in loop.shapes:
        several = _several(shape)
        if several is None:
            continue
        return Finding(
            summary="scaler.update() is called several times an iteration: the loss scale grows "
            "and falls that much faster, and may change between backward() and the step that "
            "divides by it",
            facts=(f"in {shape.count} of {loop.iterations} iterations",),
            change=_CHANGE,
            site=several.site,
        )
    late = raised(loop, "No inf checks were recorded prior to update")
    if late is not None and _is_second(events_before(*late)):
        return Finding(
            summary="scaler.update() is called a second time after the same step",
            facts=(str(late[1].facts["error"]),),
            change=("- scaler.update()",),
            site=late[1].site,
        )
    return _taking_turns(loop)


def _several(shape: Shape) -> Event | None:
    """Return an update that another one follows with a step and no backward between."""
    latest: dict[object, Event] = {}
    for event in shape.events:
        if event.kind in {"backward", "raised"}:
            latest.clear()
        elif event.kind == "update":
            first = latest.get(event.facts["scaler"])
            if first is not None and first.facts["steps"] and event.facts["steps"]:
                return first
            latest[event.facts["scaler"]] = event
    return None


def _is_second(before: tuple[Event, ...]) -> bool:
    # The refused update is itself among them.
    return [each.kind for each in before].count("update") > 1


def _taking_turns(loop: Loop) -> Finding | None:
    """Find two optimizers that step in turn, each followed by an update of the same scaler."""
    alone = [
        (shape, update)
        for shape in loop.shapes
        for update in shape.of("update")
        if shape.complete and str(update.facts["optimizers"]).isdigit()
    ]
    for number, (shape, update) in enumerate(alone):
        for other, second in alone[number + 1 :]:
            if (
                update.facts["scaler"] != second.facts["scaler"]
                or update.facts["optimizers"] == second.facts["optimizers"]
                or shape.count < 2
                or abs(shape.count - other.count) > 1
                or abs(shape.first - other.first) > 1
            ):
                continue
            return Finding(
                summary="two optimizers share a scaler and take turns, and scaler.update() "
                "follows each of their steps: the loss scale grows and falls twice as fast, and "
                "forgets the overflow of the one before the other has stepped",
                facts=(
                    (
                        f"{shape.count} updates after optimizer {update.facts['optimizers']}, "
                        f"{other.count} after optimizer {second.facts['optimizers']}"
                    ),
                ),
                change=_CHANGE,
                confidence=LIKELY,
                site=update.site,
            )
    return None


RULE = Rule(
    code="SCALER_UPDATED_TWICE",
    name="several updates of the loss scale an iteration",
    rows=(5,),
    citations=("huggingface/accelerate#439", "docs.pytorch.org/docs/stable/notes/amp_examples"),
    needs=frozenset({"loop"}),
    judge=judge,
)
