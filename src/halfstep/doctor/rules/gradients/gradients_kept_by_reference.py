"""The loop keeps gradients without a copy, and clears and fills them again before it uses them."""

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
    """Find gradients that the loop refers to while they are zeroed, and that nothing has used."""
    for account in evidence.of(GradientLedger).optimizers:
        if account.overwritten < max(_OFTEN, _SHARE * account.steps):
            continue
        return Finding(
            summary="the loop keeps the gradients of a backward() without a copy; then they are "
            "zeroed in place, and the next backward() fills the same tensors: the first gradients "
            "are lost, and the loop uses the later ones in their place",
            facts=(
                (
                    f"in {account.overwritten} of {counted(account.steps, 'step')}, gradients to "
                    "which the loop still referred were zeroed in place before "
                    "anything had used them"
                ),
                (
                    f"no step used the gradients of {account.lost} of {account.backwards} backward "
                    "passes"
                ),
            ),
            change=(
                (
                    "+ # keep copies: p.grad.clone() where the loop keeps p.grad, or clear with "
                    "zero_grad(set_to_none=True), which leaves the kept tensors alone"
                ),
            ),
            confidence=LIKELY,
            site=account.zero or account.backward,
        )
    return None


RULE = Rule(
    code="GRADIENTS_KEPT_BY_REFERENCE",
    name="gradients that are kept without a copy, and overwritten",
    rows=(58,),
    citations=("docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad",),
    needs=frozenset({"contributions"}),
    judge=judge,
    harmless=True,
)
