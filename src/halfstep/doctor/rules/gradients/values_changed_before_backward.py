"""Values that the backward reads are changed after the forward has saved them, through `.data`.

Autograd does not notice such a write, so the gradient is that of another function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import CERTAIN, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a write that autograd does not notice."""
    for write in evidence.precision.hidden_writes:
        saved = write.saved_at
        where = f" in line {saved.line}" if saved is not None else ""
        other = write.by.rstrip("_")
        return Finding(
            summary=f"{write.by} changes in place what {write.op}{where} has saved for the "
            "backward, and autograd does not notice it: the gradient is computed with the new "
            "values, and does not contain the change",
            facts=("found in the last step, by the memory that forward and backward read",),
            change=(
                *((f"  {write.site.text}",) if write.site else ()),
                f"+ # compute a new tensor by {other}(), without .data and without a write",
            ),
            confidence=CERTAIN,
            site=write.site,
            module=write.module,
        )
    return None


RULE = Rule(
    code="VALUES_CHANGED_BEFORE_BACKWARD",
    name="saved values that a write through .data changes",
    rows=(35,),
    citations=("pytorch/pytorch#6990",),
    needs=frozenset({"precision"}),
    judge=judge,
    harmless=True,
)
