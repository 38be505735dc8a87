"""The loop skips a step by itself, and skips `scaler.update()` too."""

from __future__ import annotations

import math
from itertools import takewhile
from typing import TYPE_CHECKING

from halfstep.doctor.record.order import events_before, raised, second_unscale
from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Event, Evidence, Loop
    from halfstep.doctor.record.sites import Site

DROPS = 4


def judge(evidence: Evidence) -> Finding | None:
    """Find steps that the loop leaves out, together with the update of the scaler."""
    return _refused(evidence) or _dropped(evidence)


def _dropped(evidence: Evidence) -> Finding | None:
    """Find an overflow that repeats, because the loop drops the gradients and keeps the scale."""
    numbers = evidence.numbers
    run = list(takewhile(lambda each: each.skipped, reversed(numbers.steps)))
    if len(run) < DROPS or len({each.scale for each in run}) > 1 or run[0].scale is None:
        return None
    drops = [
        (shape, event)
        for shape, event in evidence.loop.of("drop")
        if event.facts["scaled"] and not shape.of("update") and not shape.of("scaler step")
    ]
    lower = [each for each in evidence.replays if each.name == "lower scale" and not each.note]
    if not drops or not all(each.finite for each in lower):
        return None
    if any(each.loss is None or not math.isfinite(each.loss) for each in run):
        return None
    count = sum(shape.count for shape, _ in drops)
    shape, _ = drops[-1]
    site = shape.of("backward")[-1].site
    return Finding(
        summary=f"the loop clears gradients with inf or NaN without scaler.step() and "
        f"scaler.update(), so the loss scale stays at {run[0].scale:g}, and the gradients overflow "
        "again in the next step",
        facts=(
            (
                f"in {count} of {counted(evidence.loop.iterations, 'step')}, the scaled gradients "
                "are not finite, and the loop clears them"
            ),
            *(("at a loss scale of 1, the gradients of such a step are finite",) if lower else ()),
        ),
        change=(
            "- # the loop's own check of the gradients, and its `continue`",
            "  scaler.step(optimizer)  # leaves the step out if a gradient is inf or NaN",
            "  scaler.update()  # then lowers the loss scale",
        ),
        site=site,
    )


def _refused(evidence: Evidence) -> Finding | None:
    """Find a second `unscale_` or `step` of a scaler without an `update` between the two calls."""
    found = _found(evidence.loop)
    if found is None:
        return None
    fact, site, change = found
    early = _updated_before_the_step(evidence.loop)
    if early is not None:
        first, step = (each.site for each in early)
        if first and step and first != step:
            change = (f"- {first.text}", f"  {step.text}", f"+ {first.text}")
    when = "was called before scaler.step(), and not" if early else "was not called"
    return Finding(
        summary=f"scaler.update() {when} after unscale_() or step(): the scaler still "
        "holds the state of the previous step, and refuses the next one",
        facts=(fact,),
        change=change,
        site=site,
    )


def _updated_before_the_step(loop: Loop) -> tuple[Event, Event] | None:
    """Return the last update and the first step of an iteration, if the update comes first."""
    shape = loop.shapes[0]
    steps, updates = shape.of("scaler step"), shape.of("update")
    if not steps or not updates:
        return None
    is_early = shape.events.index(updates[-1]) < shape.events.index(steps[0])
    return (updates[-1], steps[0]) if is_early else None


_AFTER_A_SKIP = (
    "  if torch.isfinite(norm):",
    "      scaler.step(optimizer)",
    "+ scaler.update()  # after every unscale_, even if no step was made",
)


def _found(loop: Loop) -> tuple[str, Site | None, tuple[str, ...]] | None:
    second = second_unscale(loop)
    if second is not None and not (second.in_window or second.same):
        fact = "unscale_() was called again after a skipped step, without update() in between"
        return fact, second.event.site, _AFTER_A_SKIP
    stepped = raised(loop, "step() has already been called since the last update()")
    if stepped is not None:
        site = stepped[1].site
        step = site.text if site else "scaler.step(optimizer)"
        change = (f"  {step}", "+ scaler.update()  # once per step, after the last optimizer")
        return str(stepped[1].facts["error"]), site, change
    late = raised(loop, "unscale_() is being called after step()")
    if late is None:
        return None
    # After a step of its own iteration, or before the backward, the call is only in a wrong place.
    kinds = [each.kind for each in events_before(*late)]
    if "backward" not in kinds or "scaler step" in kinds:
        return None
    return str(late[1].facts["error"]), late[1].site, _AFTER_A_SKIP


RULE = Rule(
    code="UPDATE_SKIPPED",
    name="a scaler that is not updated",
    rows=(9,),
    citations=("Haian-Jin/LVSM#19", "Azure/MS-AMP#45"),
    needs=frozenset({"loop", "numbers", "replays"}),
    judge=judge,
)
