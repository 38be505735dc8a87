"""A divisor is zero, for example the norm of a vector of zeros, or the range of equal values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_converted_divisor
from halfstep.doctor.remedies import squares_in_fp32
from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_NORMS = {"aten.native_layer_norm", "aten.native_group_norm", "aten.native_batch_norm"}
_IN_FP32 = "# compute the divisor in fp32, with its inputs cast by .float(): it is not 0 there"
_ABOVE_0 = ".float().clamp(min=1e-6)"
_FEWEST = 3  # steps
_RECIPROCALS = {"aten.reciprocal", "aten.rsqrt"}
_DIVISORS = {"aten.div": 1, "aten.remainder": 1, "aten.fmod": 1, "aten.addcdiv": 2}
"""The position of the divisor among the inputs of each operator that divides."""


def judge(evidence: Evidence) -> Finding | None:
    """Find a division of the forward pass whose divisor contains zeros."""
    for birth in evidence.births:
        if birth.culprit and birth.kind == "nan" and _is_norm_without_eps(birth):
            return _by_norm(birth, evidence)
        lost = "" if birth.culprit else _lost(birth, evidence)
        zeros = _zeros(birth) if birth.phase == "forward" and (birth.culprit or lost) else 0
        if not zeros:
            continue
        return Finding(
            summary=f"{birth.called} divides by 0: the divisor contains "
            f"{counted(zeros, 'zero')}, and the result is {birth.value}",
            facts=(
                lost or birth.appears,
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
        above = _ABOVE_0 if _is_of_floats(birth) else ".clamp(min=1)"
        changed = with_converted_divisor(line, above) or (
            f"# the same line with a divisor above 0: divisor{above}"
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


def _lost(birth: Birth, evidence: Evidence) -> str:
    """Return what a division costs whose inf other operators turn into 0; "" for nothing."""
    empty = {
        each.iteration
        for each in evidence.numbers.steps
        if each.loss == 0 and each.gradient_norm == 0 and not each.skipped
    }
    if birth.kind != "inf" or birth.iteration not in empty or len(empty) < _FEWEST:
        return ""
    return f"its loss and all of its gradients are then exactly 0, in {len(empty)} steps"


def _is_of_floats(birth: Birth) -> bool:
    """Return whether the divisor has floating-point numbers; whole ones are not in the record."""
    return len(birth.inputs) > _DIVISORS.get(birth.op, 0)


def _zeros(birth: Birth) -> int:
    """Return the number of zeros in a divisor that made the inf or NaN; 0 for another operator."""
    divides = birth.op in _DIVISORS
    is_negative_power = birth.op == "aten.pow" and any(each < 0 for each in birth.scalars)
    if not (divides or birth.op in _RECIPROCALS or is_negative_power):
        return 0
    wrong = birth.output.infs + birth.output.nans
    if not _is_of_floats(birth):
        return 0 if divides and not birth.inputs[0].zeros and birth.exact is not None else wrong
    divisor = birth.inputs[_DIVISORS.get(birth.op, 0)]
    each_divides = math.prod(birth.output.shape) // max(1, math.prod(divisor.shape))
    # Otherwise quotients with a nonzero divisor overflow, too.
    return divisor.zeros if wrong <= divisor.zeros * each_divides else 0


RULE = Rule(
    code="DIVISION_BY_ZERO",
    name="a division by zero",
    rows=(25,),
    citations=("mihaidusmanu/d2-net#78", "facebookresearch/pytorch_GAN_zoo#89"),
    needs=frozenset({"births", "numbers", "replays"}),
    judge=judge,
    explains=("GRADIENTS_VANISH", "NO_GRADIENTS"),
)
