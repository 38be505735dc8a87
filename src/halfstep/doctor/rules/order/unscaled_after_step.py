"""`scaler.unscale_()` is called after `scaler.step()`, when the step has already been made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.order import events_before, raised
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find an `unscale_` call that the scaler refused, after a step of the same iteration."""
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


RULE = Rule(
    code="UNSCALED_AFTER_STEP",
    name="unscale_ after the step",
    rows=(59,),
    citations=("docs.pytorch.org/docs/stable/notes/amp_examples",),
    needs=frozenset({"loop"}),
    judge=judge,
)
