"""The gradient of eigenvectors divides by differences of eigenvalues, and two are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_DECOMPOSITIONS = {
    "aten._linalg_eigh": "eigh",
    "aten.linalg_eig": "eig",
    "aten._linalg_svd": "svd",
}


def judge(evidence: Evidence) -> Finding | None:
    """Find inf or NaN in the backward pass of an eigenvalue or singular value decomposition."""
    for birth in evidence.births:
        if not birth.culprit or birth.phase != "backward" or birth.overflowed:
            continue
        kind = _DECOMPOSITIONS.get(birth.forward_op)
        if kind is None:
            continue
        values = "singular values" if kind == "svd" else "eigenvalues"
        return Finding(
            summary=f"the gradient of {kind} is {birth.value}: it divides by the differences of "
            f"{values}, and two of them are equal",
            facts=(birth.appears, f"{birth.op} in {birth.node}"),
            change=(
                *((f"- {birth.user_site.text}",) if birth.user_site else ()),
                f"+ # the same line, if the loss needs only {values}: torch.linalg.{kind}vals(...)",
                "+ # or with a small random matrix added to the argument, so that no two are equal",
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
