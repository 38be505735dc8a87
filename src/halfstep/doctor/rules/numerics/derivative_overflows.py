"""The derivative of a quotient, a root or a logarithm near zero exceeds the range of fp16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.remedies import fp16_eps
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_STEEP = {
    "aten.div",
    "aten.reciprocal",
    "aten.sqrt",
    "aten.rsqrt",
    "aten.log",
    "aten.log2",
    "aten.log10",
}
_SMALLER = {"lower scale", "smaller loss"}
_MAX = 65504.0


def judge(evidence: Evidence) -> Finding | None:
    """Find an overflow of fp16 in the backward pass of an operator that is steep near zero."""
    if any(each.name in _SMALLER and each.finite for each in evidence.replays):
        return None  # The size of the loss is the cause.
    for birth in evidence.births:
        if not (birth.culprit and birth.phase == "backward" and birth.overflowed):
            continue
        if birth.output.format != "fp16" or not _is_steep(birth):
            continue
        op = birth.forward_op.removeprefix("aten.")
        eps = "" if op == "div" else f", or with an eps of {fp16_eps(birth.forward_op)} or more"
        return Finding(
            summary=f"the derivative of {op} near 0 overflows: {birth.operator} in the backward "
            f"pass gives up to {birth.exact:.3g}, and the maximum of fp16 is {_MAX:g}",
            facts=(birth.appears,),
            change=(
                *((f"- {birth.user_site.text}",) if birth.user_site else ()),
                f"+ # the same line in fp32{eps}",
            ),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _is_steep(birth: Birth) -> bool:
    if birth.forward_op == "aten.pow":  # The derivative of a negative power.
        return birth.op == "aten.pow" and any(each < 0 for each in birth.scalars)
    if birth.op == "aten.div" and len(birth.inputs) == 1:
        return False  # The divisor is a constant.
    return birth.forward_op in _STEEP


RULE = Rule(
    code="DERIVATIVE_OVERFLOWS",
    name="the derivative at an argument near zero overflows fp16",
    rows=(36,),
    citations=("keras-team/keras#23546", "pytorch/pytorch#43211"),
    needs=frozenset({"births", "replays"}),
    judge=judge,
)
