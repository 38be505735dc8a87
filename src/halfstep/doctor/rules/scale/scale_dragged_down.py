"""One of several optimizers keeps overflowing, which lowers the shared loss scale."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, StepNumbers

LATEST = 8
LOWERED = 4
MOST = 0.5


def judge(evidence: Evidence) -> Finding | None:
    """Find a loss scale below 1 that the overflows of one of several optimizers have lowered."""
    return _keeps_overflowing(evidence) or _starves(evidence)


def _keeps_overflowing(evidence: Evidence) -> Finding | None:
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


def _starves(evidence: Evidence) -> Finding | None:
    """Find an optimizer whose gradients are 0 since the overflows of another one alone."""
    steps: dict[int, list[StepNumbers]] = {}
    for each in evidence.numbers.steps:
        if each.scale is not None:
            steps.setdefault(each.optimizer, []).append(each)
    scalers: dict[object, set[object]] = {}
    for _, event in evidence.loop.of("scaler step"):
        scalers.setdefault(event.facts["optimizer"], set()).add(event.facts["scaler"])
    for one, other in permutations(sorted(steps), 2):
        overflows = {each.scale for each in steps[one] if each.skipped}
        alone = overflows.difference(each.scale for each in steps[other] if each.skipped)
        alone &= {each.scale for each in steps[other]}
        scale = steps[other][-1].scale
        if len(alone) < LOWERED or scale is None or scale >= 1:
            continue
        samples = [each for each in evidence.samples if each.optimizer == other]
        zero = [each for each in samples if each.gradient_zeros == 1 and each.norm]
        since = min((each.iteration for each in zero), default=0)
        late = [each for each in samples if each.iteration >= since]
        lived = any(each.gradient_zeros < 1 for each in samples if each.iteration < since)
        if not lived or len(zero) < len(late) * MOST:
            continue
        if scalers.get(one) != scalers.get(other) or len(scalers[one]) != 1:
            continue
        return Finding(
            summary=f"{len(alone)} overflows of optimizer {one} alone lowered the shared loss "
            f"scale to {scale:.3g}: gradients of optimizer {other} are 0 in fp16 at this scale",
            facts=(
                f"from step {since} on, optimizer {other} gets gradients of 0: {zero[0].parameter}",
                "one scaler steps both optimizers",
            ),
            change=("+ scaler = torch.amp.GradScaler(device_type)  # one for each optimizer",),
            confidence=LIKELY,
        )
    return None


RULE = Rule(
    code="SCALE_DRAGGED_DOWN",
    name="an overflow of one optimizer lowers a scale that others share",
    rows=(6,),
    citations=("NVIDIA/apex#179", "neosr-project/neosr#50"),
    needs=frozenset({"loop", "numbers", "samples"}),
    judge=judge,
    explains=("GRADIENTS_VANISH", "NO_GRADIENTS"),
)
