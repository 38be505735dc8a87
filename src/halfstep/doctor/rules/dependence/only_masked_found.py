"""A minimum or maximum only finds what a mask has written, in every row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find selections that a mask decides alone."""
    for found in evidence.of(Influence).selections:
        end, sign = ("smallest", "") if found.is_lowest else ("largest", "-")
        line = found.mask.site.text if found.mask.site else ""
        return Finding(
            summary=f"{found.op} finds the {end} values of {found.rows} rows, and in each of them "
            f"it is the {found.value:g} that a mask has written, and none of the values that the "
            "mask leaves: the result is a constant without a gradient",
            facts=(
                f"the mask is applied by {found.mask.op}, at {found.mask.site or 'unknown line'}",
            ),
            change=(
                *((f"  {line}",) if line else ()),
                f'+ # values.masked_fill(excluded, float("{sign}inf")) in place of the mask',
            ),
            confidence=LIKELY,
            site=found.mask.site or found.at.site,
            module=found.at.module,
        )
    return None


RULE = Rule(
    code="ONLY_MASKED_FOUND",
    name="a minimum or maximum that only finds what a mask has written",
    rows=(35,),
    citations=("jinnnju/PaAno#1",),
    needs=frozenset({"influence"}),
    judge=judge,
    explains=("GRADIENTS_VANISH", "NO_GRADIENTS"),
    harmless=True,
)
