"""Whole numbers are rounded by fp32 before they are subtracted or compared."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.signals.values.whole_numbers import COMPARISONS, STEPS, LostDifferences
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_MANY, _MANY_EQUAL = 0.25, 0.05
_DIGITS = 24
_EQUALITY = frozenset({"eq", "ne"})


def judge(evidence: Evidence) -> Finding | None:
    """Find differences that are mostly rounding errors."""
    for found in evidence.of(LostDifferences).lines:
        is_equality = found.op in _EQUALITY
        if found.share < (_MANY_EQUAL if is_equality else _MANY):
            continue
        apart = 2 ** (math.frexp(found.largest)[1] - _DIGITS)
        wrong = "of the results are wrong by more than a tenth, and so mostly rounding"
        if found.op in COMPARISONS:
            wrong = f"of the {'equal pairs' if is_equality else 'results'} are wrong"
        elif not found.exact:
            wrong = f"of the results are at most {STEPS} such steps, and so mostly rounding"
        line = found.site.text if found.site else ""
        exact = f" in place of {found.exact}" if found.exact else ""
        return Finding(
            summary=f"large numbers are made fp32 before {found.op}, up to {found.largest:.10g}, "
            f"where fp32 has steps of {apart:g}: {found.share:.0%} {wrong}",
            facts=(
                f"{found.distinct} different results{exact}, of {found.count}",
                f"made fp32 at {found.cast or 'an unknown line'}",
            ),
            change=(
                *((f"  {line}",) if line else ()),
                "+ # subtract or compare the exact numbers first, and then cast the result",
            ),
            confidence=LIKELY,
            site=found.site,
        )
    return None


RULE = Rule(
    code="DIFFERENCES_LOST_IN_FP32",
    name="differences of whole numbers that fp32 has rounded",
    rows=(57,),
    citations=("facebookresearch/fairo#537",),
    needs=frozenset({"whole_numbers"}),
    judge=judge,
    harmless=True,
)
