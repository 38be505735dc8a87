"""The gradient of eigenvectors or singular vectors divides by 0, as two of the values are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

# Of each operator: its name, what its gradient divides by, what a small random matrix is to
# achieve, and the function that computes only the values. The gradient of the singular vectors of
# a matrix that is not square divides by the singular values, too.
_DECOMPOSITIONS = {
    "aten._linalg_eigh": (
        "eigh",
        "the differences of eigenvalues, and two of them are equal",
        "no two are equal",
        "eigvalsh",
    ),
    "aten._linalg_svd": (
        "svd",
        "singular values and their differences, and two of them are equal, or one of them is 0",
        "no two are equal and none is 0",
        "svdvals",
    ),
}


def judge(evidence: Evidence) -> Finding | None:
    """Find inf or NaN in the backward pass of an eigenvalue or singular value decomposition."""
    for birth in evidence.births:
        if not birth.culprit or birth.phase != "backward" or birth.overflowed:
            continue
        if birth.forward_op not in _DECOMPOSITIONS:
            continue
        kind, divisors, prevented, only_values = _DECOMPOSITIONS[birth.forward_op]
        return Finding(
            summary=f"the gradient of {kind} is {birth.value}: it divides by {divisors}",
            facts=(birth.appears, f"{birth.op} in {birth.node}"),
            change=(
                *((f"- {birth.user_site.text}",) if birth.user_site else ()),
                f"+ # if the loss needs only the values: torch.linalg.{only_values}(...)",
                f"+ # or add a small random matrix to the argument, so that {prevented}",
            ),
            site=birth.user_site,
            module=birth.module,
        )
    return None


RULE = Rule(
    code="REPEATED_EIGENVALUES",
    name="the gradient of repeated eigenvalues",
    rows=(36,),
    citations=("pytorch/pytorch#49886", "tensorflow/tensorflow#17476"),
    needs=frozenset({"births"}),
    judge=judge,
)
