"""The exponential of a value overflows the format."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.formats import FORMATS

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_EXPONENTIALS = {"aten.exp", "aten.expm1", "aten.exp2", "aten.sinh", "aten.cosh"}


def judge(evidence: Evidence) -> Finding | None:
    """Find an infinity that an exponential makes."""
    for birth in evidence.births:
        if not birth.culprit or birth.op not in _EXPONENTIALS or birth.kind != "inf":
            continue
        form = birth.inputs[0].format
        limit = math.log(FORMATS[form].max) if form in FORMATS else math.inf
        return Finding(
            summary=f"{birth.op.removeprefix('aten.')} of {birth.inputs[0].largest:.4g} is "
            f"inf in {form}; exp overflows above {limit:.4g}",
            facts=(birth.appears,),
            change=(
                f"- {birth.user_site.text}" if birth.user_site else "- torch.exp(x)",
                "+ # for a softmax, use torch.softmax(x, -1), which subtracts the maximum; else:",
                f"+ torch.exp(x.float().clamp(max={math.floor(limit) - 1}))",
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
    needs=frozenset({"births"}),
    judge=judge,
)
