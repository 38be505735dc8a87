"""Gradients are cleared before every backward pass, so accumulation keeps only the last of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Event, Evidence, Fact, Shape

_OFTEN = 2
_SHARE = 0.5  # of the steps; the windows at the end of an epoch may be shorter
_FEWEST = 2  # discarded backward passes per step, for one may be an ascent or a measurement
_USES = {"step", "scaler step", "unscale", "read", "write", "divide", "drop", "raised"}


def judge(evidence: Evidence) -> Finding | None:
    """Find steps that use only the last of several backward passes of one line."""
    loop = evidence.loop
    complete = [shape for shape in loop.shapes if shape.complete]
    for number in range(len(evidence.static.optimizers)):
        stepping = [each for each in complete if _steps(each, number)]
        found = [(each, lost) for each in stepping if (lost := _discarded(each, number))]
        count = sum(shape.count for shape, _ in found)
        total = sum(shape.count for shape in stepping)
        if count < _OFTEN or count < _SHARE * total:
            continue
        shape, (zero, discarded) = max(found, key=lambda each: each[0].count)
        step = _steps(shape, number)[-1]
        line = zero.site.text if zero.site else "optimizer.zero_grad()"
        return Finding(
            summary="the gradients are cleared before every backward(), so each step uses only the "
            f"last of its {discarded + 1} backward passes",
            facts=(
                (
                    f"in {count} of {counted(total, 'step')}, the gradients of {discarded} "
                    "backward passes were cleared before anything used them"
                ),
            ),
            change=(
                f"- {line}",
                f"  {step.site.text if step.site else 'optimizer.step()'}",
                f"+ {line}  # after the step",
            ),
            confidence=LIKELY,
            site=zero.site,
        )
    return None


def _steps(shape: Shape, number: Fact) -> list[Event]:
    """Return the loop's calls that make an optimizer step, without those that run a closure."""
    return [
        each
        for each in shape.events
        if each.facts.get("optimizer") == number
        and (
            each.kind == "scaler step"
            or (each.kind == "step" and not (each.facts["by_scaler"] or each.facts["closure"]))
        )
    ]


def _writes(event: Event) -> bool:
    """Return whether the loop has changed gradients other than by clipping, or replaced them."""
    if event.kind == "write":
        return "clip" not in str(event.facts["by"])
    return event.kind in {"step", "scaler step"} and bool(event.facts["assigned"])


def _discarded(shape: Shape, number: Fact) -> tuple[Event, int] | None:
    """Return a call that clears gradients, and the number of backward passes that lose theirs.

    Only passes from the line of the pass that a step uses count: other lines compute gradients for
    another purpose, such as those of a generator in a discriminator. A loop that writes gradients
    itself may have kept copies of those that it clears.
    """
    if any(_writes(each) for each in shape.events if each.facts.get("optimizer") == number):
        return None
    lost: list[tuple[Event, Event]] = []
    waiting: list[Event] = []
    kept: list[Event] = []
    for event in shape.events:
        if event.kind == "backward":
            if str(event.facts["reaches"]) == str(number):
                waiting.append(event)
        elif event.facts.get("optimizer") != number:
            continue
        elif event.kind == "zero":
            lost += [(each, event) for each in waiting]
            waiting.clear()
        elif event.kind in _USES:
            kept += waiting
            waiting.clear()
    if len({each.site for each in kept}) != 1:
        return None
    same = [(each, zero) for each, zero in lost if each.site == kept[0].site]
    return (same[0][1], len(same)) if len(kept) == 1 and len(same) >= _FEWEST else None


RULE = Rule(
    code="GRADIENTS_CLEARED_EARLY",
    name="gradients that are cleared before a step uses them",
    rows=(58,),
    citations=("bytetriper/RAE#67", "huggingface/accelerate#1299"),
    needs=frozenset({"loop", "static"}),
    judge=judge,
    harmless=True,
)
