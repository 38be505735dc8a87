"""The loop itself decides to skip a step, and also skips `scaler.update()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.order import events_before, raised, second_unscale
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Event, Evidence, Loop
    from halfstep.doctor.record.sites import Site


def judge(evidence: Evidence) -> Finding | None:
    """Find steps that the loop leaves out, together with the update of the scaler."""
    return _refused(evidence) or _discarded(evidence)


def _discarded(evidence: Evidence) -> Finding | None:
    """Find an overflow that repeats, because the loop clears the gradients and keeps the scale."""
    found = evidence.loop.discarded
    usable = [each for each in evidence.replays if not each.note]
    plain = [each for each in usable if each.name == "plain"]
    lower = [each for each in usable if each.name == "lower scale"]
    if not found.count or found.scale is None or not plain or not lower:
        return None
    if plain[-1].finite or not lower[-1].finite:
        return None
    return Finding(
        summary="the loop clears gradients with inf or NaN without scaler.step() and "
        f"scaler.update(), so the loss scale stays at {found.scale:g}, and the gradients overflow "
        "again in the next step",
        facts=(
            (
                f"the last {found.count} times, the loop cleared the scaled gradients before any "
                "scaler or optimizer used them"
            ),
            f"at a loss scale of {lower[-1].scale:g}, the gradients of such a step are finite",
        ),
        change=(
            "- # the loop's own check of the gradients, and its `continue`",
            "  scaler.step(optimizer)  # leaves the step out if a gradient is inf or NaN",
            "  scaler.update()  # then lowers the loss scale",
        ),
        site=found.site,
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
        return fact, second.event.site, _after_a_skip(loop)
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
    return str(late[1].facts["error"]), late[1].site, _after_a_skip(loop)


def _after_a_skip(loop: Loop) -> tuple[str, ...]:
    steps = loop.of("scaler step")
    if steps and not loop.of("update"):
        site = steps[-1][1].site
        step = site.text if site else "scaler.step(optimizer)"
        return f"  {step}", "+ scaler.update()  # once per step, after the last optimizer"
    return _AFTER_A_SKIP


RULE = Rule(
    code="UPDATE_SKIPPED",
    name="a scaler that is not updated",
    rows=(9,),
    citations=("Haian-Jin/LVSM#19", "Azure/MS-AMP#45"),
    needs=frozenset({"loop", "replays"}),
    judge=judge,
)
