"""Attention logits overflow fp16 before they are scaled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record import PRODUCTS
from halfstep.doctor.record.source import scaled_before_product
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_LIMIT = 65504.0


def judge(evidence: Evidence) -> Finding | None:
    """Find an fp16 product or another operator that overflows, and that goes into a softmax."""
    for birth in evidence.births:
        if not birth.culprit or birth.phase != "forward" or birth.output.format != "fp16":
            continue
        if not (birth.overflowed and birth.feeds_softmax):
            continue
        product = "the product of queries and keys" if birth.op in PRODUCTS else birth.called
        largest = [each.largest for each in birth.inputs if each.largest is not None]
        return Finding(
            summary=f"{product} reaches {birth.exact:.3g} before a softmax, above fp16's maximum "
            f"of {_LIMIT:g}, and softmax turns inf into NaN",
            facts=(
                f"largest inputs: {' and '.join(f'{each:.3g}' for each in largest)}",
                birth.appears,
            ),
            change=_change(birth),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _change(birth: Birth) -> tuple[str, ...]:
    line = birth.user_site.text if birth.user_site else ""
    if line and birth.op not in PRODUCTS:
        return f"- {line}", "+ # the same line with queries and keys scaled first, or in fp32"
    if changed := scaled_before_product(line):
        return f"- {line}", f"+ {changed}"
    return (
        "- scores = (q @ k.transpose(-2, -1)) * scale",
        "+ scores = (q * scale) @ k.transpose(-2, -1)",
    )


RULE = Rule(
    code="ATTENTION_LOGITS_OVERFLOW",
    name="attention logits overflow fp16",
    rows=(21,),
    citations=("ultralytics/ultralytics#24990", "facebookresearch/deit#109"),
    needs=frozenset({"births"}),
    judge=judge,
    explains=("ACTIVATIONS_TOO_LARGE", "SUM_OVERFLOW"),
)
