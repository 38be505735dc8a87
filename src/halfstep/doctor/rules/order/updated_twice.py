"""`scaler.update()` is called more than once per iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.order import events_before, raised
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Event, Evidence, Loop, Shape


def judge(evidence: Evidence) -> Finding | None:
    """Find several updates of one scaler per step, even if two optimizers take turns."""
    loop = evidence.loop
    for shape in loop.shapes:
        several = _several(shape)
        if several is None:
            continue
        return Finding(
            summary="scaler.update() is called several times per step: the loss scale grows "
            "and falls too fast, and can change between backward() and scaler.step()",
            facts=(f"{loop.share(several, 'scaler')}, this line called scaler.update()",),
            change=_only_last(several),
            site=several.site,
        )
    late = raised(loop, "No inf checks were recorded prior to update")
    if late is not None and _is_second(events_before(*late)):
        return Finding(
            summary="scaler.update() is called a second time after the same step",
            facts=(str(late[1].facts["error"]),),
            change=(_removed(late[1]),),
            site=late[1].site,
        )
    return _taking_turns(evidence)


def _several(shape: Shape) -> Event | None:
    """Return the first of two updates of a scaler with a step, but no backward, between them."""
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
    # The call that raised the error was recorded as an update, too.
    return [each.kind for each in before].count("update") > 1


def _taking_turns(evidence: Evidence) -> Finding | None:
    """Find two optimizers that step in alternate iterations, each followed by an update.

    If one line updates after both, each batch may train one of them, so the harm must show.
    """
    loop = evidence.loop
    alone = [
        (shape, update)
        for shape in loop.shapes
        for update in shape.of("update")
        if not update.facts["given"]
        and shape.complete
        and str(update.facts["optimizers"]).isdigit()
    ]
    for number, (shape, update) in enumerate(alone):
        for other, second in alone[number + 1 :]:
            if (
                update.facts["scaler"] != second.facts["scaler"]
                or update.facts["optimizers"] == second.facts["optimizers"]
                or (update.site == second.site and not evidence.numbers.skips)
                or shape.count < 2
                or abs(shape.count - other.count) > 1
                or abs(shape.first - other.first) > 1
            ):
                continue
            first, last = sorted((update, second), key=_line)
            return Finding(
                summary="two optimizers share a scaler and take turns, and scaler.update() "
                "follows each of their steps: the loss scale grows and falls twice as fast. "
                "The scaler forgets an overflow in one optimizer before the other optimizer steps",
                facts=(
                    f"{_updates(loop, first)} followed steps of one optimizer",
                    f"{_updates(loop, last)} followed steps of the other one",
                ),
                change=_only_last(first),
                confidence=LIKELY,
                site=first.site,
            )
    return None


def _line(event: Event) -> int:
    return event.site.line if event.site else 0


def _updates(loop: Loop, event: Event) -> str:
    count = sum(
        shape.count
        for shape, each in loop.of("update")
        if (each.site, each.facts["optimizers"]) == (event.site, event.facts["optimizers"])
    )
    where = f"in line {event.site.line}" if event.site else "in an unknown line"
    return f"{counted(count, 'update')} {where}"


def _removed(event: Event) -> str:
    return f"- {event.site.text}" if event.site else "- scaler.update()"


def _only_last(first: Event) -> tuple[str, ...]:
    """Return the change that keeps only the last update of an iteration."""
    return (
        _removed(first),
        "+ # one update() per step, after the last optimizer's scaler.step()",
    )


RULE = Rule(
    code="SCALER_UPDATED_TWICE",
    name="several scaler updates per step",
    rows=(5,),
    citations=("huggingface/accelerate#439", "docs.pytorch.org/docs/stable/notes/amp_examples"),
    needs=frozenset({"loop", "numbers"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH",),
)
