"""The loop's own loss scale is lowered at each overflow and never raised again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

DROPS = 4


def judge(evidence: Evidence) -> Finding | None:
    """Find a loss scale in the loop's own code that fell below 1 while training continued."""
    for scale in evidence.own_scales:
        if scale.rises or scale.drops < DROPS or scale.last >= 1 or scale.steps < scale.drops:
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
            change=(
                "+ good_steps = 0 if overflow else good_steps + 1",
                "+ if good_steps and good_steps % 2000 == 0: scale *= 2  # or torch.amp.GradScaler",
            ),
            confidence=LIKELY,
            site=scale.site,
        )
    return None


RULE = Rule(
    code="SCALE_ONLY_FALLS",
    name="a loss scale that is never raised",
    rows=(43,),
    citations=("facebookresearch/fairseq#1529", "NVIDIA/apex#318"),
    needs=frozenset({"own_scales"}),
    judge=judge,
    explains=("GRADIENTS_UNDERFLOW",),
)
