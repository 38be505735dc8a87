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
_SMALL_EPS = 1e-4  # 1 / eps, the derivative of x / (x + eps) at 0, is near the maximum of fp16
_SMALLER = {"lower scale", "smaller loss"}
_MAX = 65504.0


def judge(evidence: Evidence) -> Finding | None:
    """Find an overflow of fp16 in the backward pass of an operator that is steep near zero."""
    if any(each.name in _SMALLER and each.finite for each in evidence.replays):
        return None  # The size of the loss is the cause.
    for birth in evidence.births:
        if not (birth.culprit and birth.phase == "backward" and birth.overflowed):
            continue
        if birth.output.format != "fp16":
            continue
        if found := _returned_to_fp16(birth):
            return found
        if not _is_steep(birth):
            continue
        op = birth.forward_op.removeprefix("aten.")
        eps = "" if op == "div" else f", or with an eps of {fp16_eps(birth.forward_op)} or more"
        return Finding(
            summary=f"the derivative of {op} near 0 overflows: in the backward pass, "
            f"{birth.reach}, and the maximum of fp16 is {_MAX:g}",
            facts=(birth.appears,),
            change=(
                *((f"- {birth.user_site.text}",) if birth.user_site else ()),
                f"+ # the same line in fp32{eps}",
            ),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _returned_to_fp16(birth: Birth) -> Finding | None:
    """Find a division by a small eps in fp32 whose gradient is cast to fp16 and overflows there."""
    divisions = [
        each
        for each in birth.upstream("aten.div")
        if each.additions is not None and not each.scalars
    ]
    eps = [
        abs(each)
        for maker in birth.upstream("aten.add", "aten.clamp")
        for each in maker.scalars
        if 0 < abs(each) < _SMALL_EPS
    ]
    if birth.operator != "cast" or not divisions or not eps:
        return None
    site = divisions[0].site or birth.user_site
    return Finding(
        summary=f"the derivative near 0 overflows: with an eps of {min(eps):g}, the gradient is up "
        f"to {birth.exact:.3g}; it is computed in fp32 and cast to fp16, whose maximum is {_MAX:g}",
        facts=(birth.appears,),
        change=(
            *((f"- {site.text}",) if site else ()),
            "+ # the same line with an eps of 1e-4 or more, or with inputs computed in fp32",
        ),
        site=site,
        module=birth.module,
    )


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
