"""The state of a recurrence is detached between every two steps, so gradients go back only one.

Nothing that must be remembered for more than one step can be learned then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a recurrence without gradients between its steps."""
    for found in evidence.of(Influence).states:
        site, of_last = found.at.site, found.ends == 1
        what = (
            "only the last one is in the loss" if of_last else "each gets gradients of its own loss"
        )
        return Finding(
            summary=f"the state of a recurrence of {found.steps} steps over a sequence is detached "
            f"between every two of them, and {what}: no gradient passes back in time",
            facts=("the other steps get no gradient from this loss",)
            if of_last
            else (f"{found.ends} steps have targets of their own",),
            change=(
                "+ # detach the state once per sequence or chunk, before its first step:",
                *((f"  {site.text}",) if site else ()),
            ),
            confidence=LIKELY if of_last else POSSIBLE,
            site=site,
            module=found.at.module,
        )
    return None


RULE = Rule(
    code="STATE_DETACHED",
    name="a recurrent state that is detached in each step",
    rows=(11,),
    citations=("yhs968/pyGRU4REC#8",),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
