"""A divisor is zero, for example the norm of a vector of zeros, or the range of equal values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_converted_divisor
from halfstep.doctor.remedies import squares_in_fp32
from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence, TensorSummary

_NORMS = {"aten.native_layer_norm", "aten.native_group_norm", "aten.native_batch_norm"}
_IN_FP32 = "# compute the divisor in fp32, with its inputs cast by .float(): it is not 0 there"
_ABOVE_0 = ".float().clamp(min=1e-6)"
_RECIPROCALS = {"aten.reciprocal", "aten.rsqrt"}


def judge(evidence: Evidence) -> Finding | None:
    """Find a division of the forward pass whose divisor contains zeros."""
    for birth in evidence.births:
        if birth.culprit and birth.kind == "nan" and _is_norm_without_eps(birth):
            return _by_norm(birth, evidence)
        divisor = _divisor(birth)
        if not birth.culprit or birth.phase != "forward" or divisor is None or not divisor.zeros:
            continue
        each_divides = math.prod(birth.output.shape) // max(1, math.prod(divisor.shape))
        if birth.output.infs + birth.output.nans > divisor.zeros * each_divides:
            continue  # Quotients with a nonzero divisor overflow, too.
        return Finding(
            summary=f"{birth.called} divides by 0: the divisor contains "
            f"{counted(divisor.zeros, 'zero')}, and the result is {birth.value}",
            facts=(
                birth.appears,
                *evidence.fp32_facts(birth.iteration, "the zeros come from half precision"),
            ),
            change=_change(birth, evidence),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _change(birth: Birth, evidence: Evidence) -> tuple[str, ...]:
    line = birth.user_site.text if birth.user_site else ""
    if not evidence.exact_is_finite(birth.iteration):
        changed = with_converted_divisor(line, _ABOVE_0) or (
            f"# the same line with a divisor above 0: divisor{_ABOVE_0}"
        )
    else:
        dividend, slash, divisor = line.rpartition("/")
        divisor = squares_in_fp32(divisor) if slash else ""
        changed = f"{dividend}/{divisor}" if divisor else _IN_FP32
    return (*((f"- {line}",) if line else ()), f"+ {changed}")


def _is_norm_without_eps(birth: Birth) -> bool:
    return birth.op in _NORMS and birth.scalars[-1] == 0  # The eps is the last number.


def _by_norm(birth: Birth, evidence: Evidence) -> Finding:
    name = birth.operator.removeprefix("native_")
    return Finding(
        summary=f"{name} divides by 0: the values that it normalises are equal, and its eps is 0",
        facts=(birth.appears, *evidence.fp32_facts(birth.iteration)),
        change=("+ # give the norm an eps above 0, for example eps=1e-5",),
        site=birth.user_site,
        module=birth.module,
    )


def _divisor(birth: Birth) -> TensorSummary | None:
    if birth.op == "aten.div" and len(birth.inputs) > 1:
        return birth.inputs[1]
    is_negative_power = birth.op == "aten.pow" and any(each < 0 for each in birth.scalars)
    return birth.inputs[0] if birth.op in _RECIPROCALS or is_negative_power else None


RULE = Rule(
    code="DIVISION_BY_ZERO",
    name="a division by zero",
    rows=(25,),
    citations=("mihaidusmanu/d2-net#78", "facebookresearch/pytorch_GAN_zoo#89"),
    needs=frozenset({"births", "replays"}),
    judge=judge,
)
