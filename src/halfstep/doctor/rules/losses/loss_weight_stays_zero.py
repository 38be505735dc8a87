"""A weight that is to change in training multiplies a term of the loss by 0 in every step.

Often, whole numbers are divided (`epoch // 10`), or the run ends before the weight rises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.values.zero_factors import ZeroFactors
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 20  # products


def judge(evidence: Evidence) -> Finding | None:
    """Find a term whose planned weight is always 0."""
    for line in evidence.of(ZeroFactors).lines:
        if line.count >= _FEWEST:
            return Finding(
                summary=f"{line.factor} is 0 in all {line.count} steps, although it is computed "
                f"from {line.counter}: the term that it multiplies trains nothing",
                facts=(
                    f"the product with 0 was computed {line.count} times, with no other number",
                ),
                change=(
                    f"+ # print({line.factor}) for the last {line.counter}:",
                    "+ # a division by // gives 0 until the end of the first period",
                ),
                confidence=LIKELY,
                site=line.site,
            )
    return None


RULE = Rule(
    code="LOSS_WEIGHT_STAYS_ZERO",
    name="a planned weight of a loss that is always 0",
    rows=(59,),
    citations=("valdersoul/bn-vae#1",),
    needs=frozenset({"zero_factors"}),
    judge=judge,
    harmless=True,
)
