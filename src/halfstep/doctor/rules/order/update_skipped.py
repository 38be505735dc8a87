"""The loop skips a step by itself, and skips `scaler.update()` too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.order import events_before, raised, second_unscale
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Loop
    from halfstep.doctor.record.sites import Site


def judge(evidence: Evidence) -> Finding | None:
    """Find a second `unscale_` or `step` without an update after the first."""
    found = _found(evidence.loop)
    if found is None:
        return None
    fact, site, change = found
    return Finding(
        summary="scaler.update() was not called after unscale_() or step(): the scaler still "
        "holds the state of the previous step, and refuses the next one",
        facts=(fact,),
        change=change,
        site=site,
    )


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
    # After the step of the same iteration, the call is out of order anyway.
    kinds = [each.kind for each in events_before(*late)]
    if "backward" not in kinds:
        return None
    return str(late[1].facts["error"]), late[1].site, _AFTER_A_SKIP


RULE = Rule(
    code="UPDATE_SKIPPED",
    name="a scaler that is not updated",
    rows=(9,),
    citations=("Haian-Jin/LVSM#19", "Azure/MS-AMP#45"),
    needs=frozenset({"loop"}),
    judge=judge,
)
