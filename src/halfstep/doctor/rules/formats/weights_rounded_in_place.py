"""A model is cast to half precision and back to fp32 between steps, which rounds its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.formats import FORMATS
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

OFTEN = 2
_TORCH = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}


def judge(evidence: Evidence) -> Finding | None:
    """Find a model that the loop casts to half precision and back, with steps before and after."""
    for each in evidence.trips:
        between = each.steps_before > 0 and each.steps_after > 0
        if not between or not (each.is_trained or each.count >= OFTEN):
            continue
        line = each.site.text if each.site is not None else "model.half()"
        digits = FORMATS[each.format].mantissa_bits
        return Finding(
            summary=f"{counted(each.count, 'time')}, the loop casts {each.kind} to {each.format} "
            f"in place and back to fp32: this rounds the weights to {digits + 1} significant bits, "
            "and the cast to fp32 does not bring the lost bits back",
            facts=(
                (
                    "an optimizer updates these weights, so small updates since the last cast are "
                    "lost"
                    if each.is_trained
                    else "no optimizer updates these weights; they may be an average of weights"
                ),
            ),
            change=(
                f"- {line}",
                f"+ # compute in {each.format}, and leave the weights as they are:",
                f"+ with torch.autocast(device_type, dtype={_TORCH[each.format]}):",
                "+ # or cast a copy: copy.deepcopy(model)",
            ),
            confidence=CERTAIN if each.is_trained else LIKELY,
            site=each.site,
        )
    return None


RULE = Rule(
    code="WEIGHTS_ROUNDED_IN_PLACE",
    name="weights rounded by a cast to half precision and back",
    rows=(29,),
    citations=("ultralytics/ultralytics#24731",),
    needs=frozenset({"trips"}),
    judge=judge,
    harmless=True,
)
