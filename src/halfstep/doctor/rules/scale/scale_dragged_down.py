"""One of several optimizers keeps overflowing, which lowers the shared loss scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, StepNumbers

LATEST = 8


def judge(evidence: Evidence) -> Finding | None:
    """Find a loss scale below 1 at which one optimizer always skips and another never does."""
    last: dict[int, list[StepNumbers]] = {}
    for step in evidence.numbers.steps:
        if step.scale is not None:
            last.setdefault(step.optimizer, []).append(step)
    latest = {number: steps[-LATEST:] for number, steps in last.items() if len(steps) >= LATEST}
    skipped = [number for number, steps in latest.items() if all(each.skipped for each in steps)]
    stepping = [
        number for number, steps in latest.items() if not any(each.skipped for each in steps)
    ]
    if not skipped or not stepping:
        return None
    scale = latest[skipped[0]][-1].scale
    shared = {
        event.facts["scaler"]
        for _, event in evidence.loop.of("scaler step")
        if event.facts["optimizer"] in {skipped[0], stepping[0]}
    }
    if scale is None or scale >= 1 or len(shared) > 1:
        return None
    return Finding(
        summary=f"the last {LATEST} steps of optimizer {skipped[0]} were skipped, which lowered "
        f"the shared loss scale to {scale:.3g}: gradients of optimizer {stepping[0]} underflow at "
        "this scale",
        facts=(
            f"none of the last {LATEST} steps of optimizer {stepping[0]} were skipped",
            "one scaler steps both optimizers",
        ),
        change=(
            f"+ # the overflow does not depend on the scale; fix optimizer {skipped[0]}'s loss:",
            "+ loss = loss.float() / weight  # so that both losses are of a similar size",
        ),
        confidence=LIKELY,
    )


RULE = Rule(
    code="SCALE_DRAGGED_DOWN",
    name="an overflow of one optimizer lowers a scale that others share",
    rows=(6,),
    citations=("NVIDIA/apex#179", "neosr-project/neosr#50"),
    needs=frozenset({"loop", "numbers"}),
    judge=judge,
)
