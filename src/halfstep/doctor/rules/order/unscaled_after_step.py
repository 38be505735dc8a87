"""`scaler.unscale_()` is called after `scaler.step()`, when the step has already been made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.order import events_before, raised
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Event, Evidence, Fact, Loop


def judge(evidence: Evidence) -> Finding | None:
    """Find an `unscale_` call after a step of the same iteration, refused or after `update()`."""
    return _refused(evidence) or _after_update(evidence)


def _refused(evidence: Evidence) -> Finding | None:
    late = raised(evidence.loop, "unscale_() is being called after step()")
    if late is None:
        return None
    steps = [each for each in events_before(*late) if each.kind == "scaler step"]
    if not steps:
        return None
    site, step = late[1].site, steps[-1].site
    line = site.text if site else "scaler.unscale_(optimizer)"
    return Finding(
        summary="scaler.unscale_() is called after scaler.step(): the step has already used the "
        "gradients, and the scaler refuses the call",
        facts=(str(late[1].facts["error"]),),
        change=(
            f"+ {line}",
            f"  {step.text if step else 'scaler.step(optimizer)'}",
            f"- {line}",
        ),
        site=site,
    )


def _after_update(evidence: Evidence) -> Finding | None:
    """Find gradients that are unscaled after `step()` and `update()`, with no backward between."""
    for shape in evidence.loop.shapes:
        steps: dict[Fact, Event] = {}
        updated: set[Fact] = set()
        for event in shape.events:
            optimizer = event.facts.get("optimizer")
            if event.kind in {"backward", "zero"}:
                steps.clear()
            elif event.kind == "scaler step":
                steps[optimizer] = event
                updated.discard(optimizer)
            elif event.kind == "update":
                updated |= set(steps)
            elif event.kind == "unscale" and optimizer in steps and optimizer in updated:
                return _late(evidence.loop, event, steps[optimizer])
    return None


def _late(loop: Loop, event: Event, step: Event) -> Finding:
    line = event.site.text if event.site else "scaler.unscale_(optimizer)"
    return Finding(
        summary="scaler.unscale_() is called after scaler.step() and scaler.update(): the scaler "
        "takes the gradients of the next step for unscaled ones, so that step applies gradients "
        "that are still multiplied by the loss scale",
        facts=(f"{loop.share(event)}, unscale_() was called after the step",),
        change=(
            f"+ {line}",
            f"  {step.site.text if step.site else 'scaler.step(optimizer)'}",
            f"- {line}",
        ),
        site=event.site,
    )


RULE = Rule(
    code="UNSCALED_AFTER_STEP",
    name="unscale_ after the step",
    rows=(59,),
    citations=("docs.pytorch.org/docs/stable/notes/amp_examples",),
    needs=frozenset({"loop"}),
    judge=judge,
    explains=("CLIPPED_AFTER_STEP", "GRADIENTS_VANISH", "LEARNING_RATE_TOO_HIGH"),
)
