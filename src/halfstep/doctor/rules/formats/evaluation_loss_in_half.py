"""The loss of an evaluation is computed in half precision, outside autocast, and overflows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find half-precision results of evaluation outside autocast that are finite only in fp32."""
    overflows = [each for each in evidence.overflows if each.evaluation]
    if not overflows or any(each.makers for each in evidence.inputs):
        return None  # A training step reads the result: it is a target or a weight.
    first = overflows[0]
    return Finding(
        summary=f"{first.name} is computed in {first.format}, outside autocast, and is not finite; "
        f"in fp32 it is {first.exact:.4g}. Under autocast it would be computed in fp32",
        facts=(f"this happened {counted(first.count, 'time')}, with gradients disabled",),
        change=(
            f"- {first.site.text if first.site else 'loss = criterion(outputs, labels)'}",
            "+ loss = criterion(outputs.float(), labels)  # or inside the autocast block",
        ),
        site=first.site,
    )


RULE = Rule(
    code="EVALUATION_LOSS_IN_HALF",
    name="an evaluation loss outside autocast",
    rows=(15,),
    citations=("huggingface/pytorch-image-models#1586", "hiyouga/LLaMA-Factory#3474"),
    needs=frozenset({"inputs", "overflows"}),
    judge=judge,
    harmless=True,
)
