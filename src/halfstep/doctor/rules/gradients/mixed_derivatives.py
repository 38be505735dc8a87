"""Second derivatives are taken of several coordinates at once, so the mixed ones are in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.values.second_derivatives import MixedDerivatives
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_SHARE = 0.05


def judge(evidence: Evidence) -> Finding | None:
    """Find sums of rows of a Hessian in place of its diagonal."""
    for found in evidence.of(MixedDerivatives).lines:
        if not found.share > _SHARE:
            continue
        return Finding(
            summary=f"the second derivatives by {found.coordinates} coordinates are taken of their "
            "sum, so each holds the mixed derivatives as well: autograd.grad() sums over all "
            "columns of its outputs",
            facts=(
                f"the mixed derivatives are {found.share:.0%} as large as those that are meant",
            ),
            change=(
                "+ # differentiate each column on its own, and take the same column of the result:",
                "+ # torch.autograd.grad(u_x[:, 0].sum(), x, create_graph=True)[0][:, 0]",
            ),
            confidence=LIKELY,
            site=found.site,
        )
    return None


RULE = Rule(
    code="MIXED_DERIVATIVES",
    name="second derivatives that hold the mixed ones",
    rows=(58,),
    citations=("prateekbhustali/Physics-Informed-Neural-Networks#4",),
    needs=frozenset({"mixed_derivatives"}),
    judge=judge,
    harmless=True,
)
