"""A large negative mask constant overflows to -inf when a score or a mask is added to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.formats import FORMATS
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_EDGE = 0.5
_LARGE = 1e4


def judge(evidence: Evidence) -> Finding | None:
    """Find an operator that turns the finite constant of a mask into -inf."""
    for birth in evidence.births:
        output = birth.output
        if not birth.culprit or birth.phase != "forward" or output.format not in FORMATS:
            continue
        if output.nans or not output.infs or output.infs != output.negative_infs:
            continue
        lowest = min((each.lowest for each in birth.inputs if each.lowest is not None), default=0.0)
        if not _is_mask(birth, FORMATS[output.format].max):
            continue
        return Finding(
            summary=f"a finite mask constant becomes -inf in {output.format}: "
            f"{birth.operator} of {lowest:.4g} gives -inf "
            f"{counted(output.infs, 'time')}",
            facts=(
                birth.appears,
                f"next operators: {', '.join(birth.consumers[:3]) or 'none'}",
                "softmax of a row of -inf is NaN, and so is 0 times -inf",
            ),
            change=(
                "- scores = scores + mask * torch.finfo(scores.dtype).min",
                "+ scores = torch.where(mask, torch.finfo(scores.dtype).min, scores)",
            ),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _is_mask(birth: Birth, limit: float) -> bool:
    if any(each <= -_LARGE and abs(each) > limit for each in birth.scalars):
        return True
    for each in birth.inputs:
        if each.lowest is None or each.largest is None:
            continue
        if birth.op.startswith(("aten.add", "aten.sub")) and each.lowest <= -_EDGE * limit:
            return True
        # Apart from zeros, all elements of a mask have the same magnitude.
        if each.lowest < -limit and each.smallest == each.largest:
            return True
    return False


RULE = Rule(
    code="MASK_OVERFLOWS",
    name="a mask becomes -inf",
    rows=(23,),
    citations=(
        "NVIDIA/apex#93",
        "huggingface/transformers#17306",
    ),
    needs=frozenset({"births"}),
    judge=judge,
    explains=("FULLY_MASKED_ROW", "ACTIVATIONS_TOO_LARGE", "ATTENTION_LOGITS_OVERFLOW"),
)
