"""The entropy bonus of a policy has the wrong sign."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find an entropy beside a policy gradient that the loss makes smaller."""
    for found in evidence.of(Influence).entropies:
        return Finding(
            summary="the loss grows with the entropy of the policy, so training makes the policy "
            "certain of its actions as fast as it can, and it stops exploring",
            facts=(
                f"the loss of the last step grows by {found.slope:.2g} for each nat of entropy",
                "the same policy has a loss of its actions with advantages of both signs",
            ),
            change=("+ # subtract the bonus: loss = policy_loss - coefficient * entropy.mean()",),
            confidence=LIKELY,
            site=found.at.site,
            module=found.at.module,
        )
    return None


RULE = Rule(
    code="ENTROPY_MADE_SMALLER",
    name="an entropy bonus with the wrong sign",
    rows=(35,),
    citations=("pukkapies/dl-imperial-maths#8",),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
