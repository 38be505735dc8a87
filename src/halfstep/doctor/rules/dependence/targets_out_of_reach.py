"""The last activation of a regression cannot give the values of its targets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_SHARE = 0.1  # of the targets


def judge(evidence: Evidence) -> Finding | None:
    """Find a regression with many targets beyond the range of its predictions."""
    for each in evidence.of(Influence).reaches:
        if each.share < _SHARE:
            continue
        bounds = f"from {each.low:g} to {each.high:g}"
        if math.isinf(each.high):
            bounds = f"from {each.low:g} on"
        elif math.isinf(each.low):
            bounds = f"up to {each.high:g}"
        name = f"a scaled {each.op}" if each.is_scaled else each.op
        limits = f"from {each.smallest:.3g} to {each.largest:.3g}"
        return Finding(
            summary=f"the predictions end in {name}, which gives values {bounds}, but "
            f"{each.share:.0%} of the targets are beyond: they are "
            f"{limits}",
            facts=("measured on the targets of the last step",),
            change=(
                (
                    f"+ # scale {each.op} to the range of the targets: {limits}"
                    if each.is_scaled
                    else f"+ # no {each.op} after the last layer, or targets that are scaled to "
                    "its range"
                ),
            ),
            confidence=LIKELY,
            site=each.at.site,
            module=each.at.module,
        )
    return None


RULE = Rule(
    code="TARGETS_OUT_OF_REACH",
    name="targets beyond the range of the last activation",
    rows=(35,),
    citations=("jcjohnson/pytorch-examples#30", "ProteomicsML/ProteomicsML#203"),
    needs=frozenset({"influence"}),
    judge=judge,
    explains=("INPUT_LOST", "NO_GRADIENTS", "GRADIENTS_VANISH"),
    harmless=True,
)
