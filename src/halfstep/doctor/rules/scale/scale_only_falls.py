"""A loss scale that the loop sets is lowered at each overflow and never raised again."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

DROPS = 4
_CHANGE = (
    "+ good_steps = 0 if overflow else good_steps + 1",
    "+ if good_steps and good_steps % 2000 == 0: scale *= 2  # or GradScaler's own update()",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find a loss scale that the loop lowered to 1 or less while training continued."""
    return _by_hand(evidence) or _given_to_scaler(evidence)


def _by_hand(evidence: Evidence) -> Finding | None:
    """Find such a factor of the loss in the loop's own code."""
    for scale in evidence.own_scales:
        if scale.rises or scale.drops < DROPS or scale.last > 1 or scale.steps < scale.drops:
            continue
        return Finding(
            summary=f"the loop's own loss scale fell from {scale.first:g} to {scale.last:g} "
            f"and never rose: each overflow lowers it for good, and small gradients "
            "become 0 in fp16",
            facts=(
                (
                    f"the loop lowered the scale {counted(scale.drops, 'time')}, each time instead "
                    "of a step"
                ),
                f"{counted(scale.steps, 'step')} followed the first decrease, without an increase",
            ),
            change=_CHANGE,
            confidence=LIKELY,
            site=scale.site,
        )
    return None


def _given_to_scaler(evidence: Evidence) -> Finding | None:
    """Find such a scale among those that the loop gives to `scaler.update()`."""
    updates = [event for _, event in evidence.loop.of("update")]
    steps = [each for each in evidence.numbers.steps if each.scale is not None]
    scales = [each.scale for each in steps if each.scale is not None]
    if not updates or not all(each.facts["given"] for each in updates):
        return None
    drops = sum(later < scale for scale, later in pairwise(scales))
    rises = any(later > scale for scale, later in pairwise(scales))
    if rises or drops < DROPS or scales[-1] > 1:
        return None
    first = next(place for place, scale in enumerate(scales) if scale < scales[0])
    made = sum(not each.skipped for each in steps[first:])
    if made < drops:
        return None
    return Finding(
        summary=f"the loss scale that the loop gives to scaler.update() fell from {scales[0]:g} to "
        f"{scales[-1]:g} and never rose: each overflow lowers it for good, and small gradients "
        "become 0 in fp16",
        facts=(
            f"the scale was lowered {counted(drops, 'time')}",
            f"{counted(made, 'step')} followed the first decrease, without an increase",
        ),
        change=_CHANGE,
        confidence=LIKELY,
        site=updates[0].site,
    )


RULE = Rule(
    code="SCALE_ONLY_FALLS",
    name="a loss scale that is never raised",
    rows=(43,),
    citations=("facebookresearch/fairseq#1529", "NVIDIA/apex#318"),
    needs=frozenset({"loop", "numbers", "own_scales"}),
    judge=judge,
    explains=("GRADIENTS_UNDERFLOW", "GRADIENTS_VANISH", "NO_GRADIENTS"),
)
