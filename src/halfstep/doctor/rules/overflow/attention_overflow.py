"""Attention logits overflow fp16 before they are scaled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import scaled_before_product
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_PRODUCTS = {"aten.bmm", "aten.baddbmm", "aten.mm", "aten.addmm"}
_LIMIT = 65504.0


def judge(evidence: Evidence) -> Finding | None:
    """Find an fp16 matrix product that overflows, and whose result goes into a softmax."""
    for birth in evidence.births:
        if not birth.culprit or birth.op not in _PRODUCTS or birth.output.format != "fp16":
            continue
        if birth.exact is None or birth.exact <= _LIMIT:
            continue
        if not birth.feeds_softmax:
            continue
        largest = [each.largest for each in birth.inputs if each.largest is not None]
        return Finding(
            summary=f"the product of queries and keys reaches {birth.exact:.3g}, above fp16's "
            f"maximum of {_LIMIT:g}, and softmax turns inf into NaN",
            facts=(
                f"largest inputs: {' and '.join(f'{each:.3g}' for each in largest)}",
                birth.appears,
            ),
            change=_change(birth.user_site.text if birth.user_site else ""),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _change(line: str) -> tuple[str, ...]:
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
    explains=("ACTIVATIONS_TOO_LARGE",),
)
