"""A step counts a loss several times: backward runs again on a sum that contains the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.contributions import GradientLedger
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 2
_SHARE = 0.5  # of the steps


def judge(evidence: Evidence) -> Finding | None:
    """Find backward passes whose loss contains that of an earlier backward of the same step."""
    for account in evidence.of(GradientLedger).optimizers:
        if account.repeated < max(_OFTEN, _SHARE * account.steps):
            continue
        line = account.repeated_at
        return Finding(
            summary="backward() runs on a loss that contains the losses of earlier backward() "
            "calls of the same step, so their gradients are added again each time",
            facts=(
                (
                    f"in {account.repeated} of {counted(account.steps, 'step')}, a loss was "
                    f"counted more than once, in {account.usual} backward passes per step"
                ),
            ),
            change=(
                (
                    "+ # run backward() on each loss alone, or once on their sum, after the loop "
                    "that adds them; retain_graph=True is not needed then"
                ),
            ),
            confidence=LIKELY,
            site=line,
        )
    return None


RULE = Rule(
    code="LOSS_COUNTED_AGAIN",
    name="a loss that a step counts several times",
    rows=(58,),
    citations=("docs.pytorch.org/docs/stable/generated/torch.autograd.backward",),
    needs=frozenset({"contributions"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH", "NOT_FINITE"),
)
