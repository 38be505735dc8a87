"""A straight-through estimator lacks `detach()`, so it passes no gradient on to its input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.values.cancelling import CancellingLines
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 2
_SHARE = 0.5  # of the searched backward passes


def judge(evidence: Evidence) -> Finding | None:
    """Find losses that go through sums x + (y - x)."""
    for line in evidence.of(CancellingLines).lines:
        if line.found < max(_OFTEN, _SHARE * line.searched):
            continue
        return Finding(
            summary="the loss goes through a sum x + (y - x), in which the two gradients of x "
            "cancel: nothing behind x learns from this path; a straight-through estimator "
            "detaches the difference",
            facts=(
                f"{counted(line.sums, 'such sum')} in the graph of the backward()",
                f"found in {line.found} of {counted(line.searched, 'examined graph')}",
            ),
            change=(
                "- x + (y - x)",
                "+ x + (y - x).detach()",
            ),
            confidence=LIKELY,
            site=line.site,
        )
    return None


RULE = Rule(
    code="STRAIGHT_THROUGH_CANCELS",
    name="a straight-through estimator without detach()",
    rows=(58,),
    citations=("zalandoresearch/pytorch-vq-vae#6",),
    needs=frozenset({"cancelling"}),
    judge=judge,
    explains=("GRADIENTS_VANISH", "PART_WITHOUT_GRADIENT"),
    harmless=True,
)
