"""The derivative of a root at exactly zero is infinite, as in a norm that is written with sqrt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_converted_argument
from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_ROOTS = {
    "aten.sqrt",
    "aten.rsqrt",
    "aten.pow",
    "aten.norm",
    "aten.hypot",
    "aten.linalg_vector_norm",
    "aten.std",
    "aten._cdist_forward",
}
_ARCS = {"aten.acos", "aten.asin"}
_LIMITS = dict.fromkeys(("acos", "asin"), "-1 + 1e-6, 1 - 1e-6")
_ABOVE_0 = "min=1e-6"


def judge(evidence: Evidence) -> Finding | None:
    """Find inf or NaN in the backward pass of a root at 0, or of an arc function at 1 or -1."""
    if any(each.name == "lower scale" and each.finite for each in evidence.replays):
        return None  # The loss scale is the cause.
    for birth in evidence.births:
        if not birth.culprit or birth.phase != "backward":
            continue
        if birth.forward_op not in _ROOTS | _ARCS or birth.overflowed:
            continue
        # In a division, zeros in the incoming gradient do not matter, only zeros in the divisor.
        read = birth.inputs[1:] if birth.op == "aten.div" else birth.inputs
        zeros = max((each.zeros for each in read), default=0)
        if not zeros:
            continue
        op = birth.forward_op.removeprefix("aten.")
        is_arc = birth.forward_op in _ARCS
        return Finding(
            summary=f"the derivative of {op} at {'1 and -1' if is_arc else '0'} is infinite: "
            f"the forward pass is finite, but the gradient is {birth.value}",
            facts=(
                f"{birth.op} in {birth.node} gets {counted(zeros, 'zero')}",
                birth.appears,
            ),
            change=(
                *((f"- {birth.user_site.text}",) if birth.user_site else ()),
                f"+ {_changed(birth, op) or _in_words(op)}",
            ),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _changed(birth: Birth, op: str) -> str | None:
    """Return the line with an argument at which the derivative is finite; None if unknown."""
    line = birth.user_site.text if birth.user_site else ""
    return with_converted_argument(line, op, f".float().clamp({_LIMITS.get(op, _ABOVE_0)})")


def _in_words(op: str) -> str:
    if op in _LIMITS:
        return (
            f"# the same line with an argument away from 1 and -1: torch.{op}(x.float()"
            f".clamp({_LIMITS[op]}))"
        )
    if op == "hypot":
        return "# the same line with a root of a number above 0: torch.sqrt(x * x + y * y + 1e-6)"
    return "# the same line with an argument above 0, in fp32: torch.sqrt(x.float() + 1e-6)"


RULE = Rule(
    code="ROOT_AT_ZERO",
    name="the gradient of a root at zero",
    rows=(36,),
    citations=("tensorflow/tensorflow#22048",),
    needs=frozenset({"births", "replays"}),
    judge=judge,
)
