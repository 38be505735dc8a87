"""An exponential overflows its number format."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.formats import FORMATS

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

# Each exponential and its inverse. The inverse of a format's maximum is the overflow limit.
_EXPONENTIALS = {
    "aten.exp": math.log,
    "aten.expm1": math.log1p,
    "aten.exp2": math.log2,
    "aten.sinh": math.asinh,
    "aten.cosh": math.acosh,
}


def judge(evidence: Evidence) -> Finding | None:
    """Find an exponential that returns inf for a finite argument."""
    for birth in evidence.births:
        if not birth.culprit or birth.op not in _EXPONENTIALS or birth.kind != "inf":
            continue
        form = birth.inputs[0].format
        limit = _EXPONENTIALS[birth.op](FORMATS[form].max) if form in FORMATS else math.inf
        return Finding(
            summary=f"{birth.operator} of {birth.inputs[0].largest:.4g} is inf in {form}; "
            f"{birth.operator} overflows above {limit:.4g}",
            facts=(birth.appears, *evidence.fp32_facts()),
            change=(
                f"- {birth.user_site.text}" if birth.user_site else f"- torch.{birth.operator}(x)",
                "+ # for a softmax, use torch.softmax(x, -1): it subtracts the maximum. Otherwise:",
                f"+ torch.{birth.operator}(x.float().clamp(max={math.floor(limit) - 1}))",
            ),
            site=birth.user_site,
            module=birth.module,
        )
    return None


RULE = Rule(
    code="EXP_OVERFLOW",
    name="an exponential overflows",
    rows=(30,),
    citations=("OpenRLHF/OpenRLHF#1335", "NVIDIA/apex#812"),
    needs=frozenset({"births", "replays"}),
    judge=judge,
)
