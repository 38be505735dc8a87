"""An exponential overflows its number format."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_converted_argument
from halfstep.doctor.verdict import Finding, Rule
from halfstep.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.doctor.record import Birth, Evidence

# Each exponential and its inverse. The inverse of a format's maximum is the overflow limit.
_EXPONENTIALS = {
    "aten.exp": math.log,
    "aten.expm1": math.log1p,
    "aten.exp2": math.log2,
    "aten.sinh": math.asinh,
    "aten.cosh": math.acosh,
}
_OF_A_NUMBER = "Scalar"  # the overload of `pow` for a Python number and a tensor as exponent
_BOTH = {"aten.sinh", "aten.cosh"}


def judge(evidence: Evidence) -> Finding | None:
    """Find an exponential that returns inf for a finite argument."""
    for birth in evidence.births:
        inverse = _inverse(birth)
        if not birth.culprit or inverse is None or birth.kind != "inf":
            continue
        form = birth.inputs[0].format
        limit = inverse(FORMATS[form].max) if form in FORMATS else math.inf
        return Finding(
            summary=f"{birth.called} of {birth.inputs[0].largest:.4g} is inf in {form}; "
            f"{birth.called} overflows above {limit:.4g}",
            facts=(birth.appears, *evidence.fp32_facts(birth.iteration)),
            change=_change(birth, _conversion(birth, inverse)),
            otherwise=(_change(birth, _clamp(birth, limit)),) if math.isfinite(limit) else (),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _change(birth: Birth, conversion: str) -> tuple[str, ...]:
    line = birth.user_site.text if birth.user_site else f"torch.{birth.operator}(x)"
    if birth.op == "aten.pow":
        return f"- {line}", f"+ # the same line with its exponent limited: x{conversion}"
    changed = with_converted_argument(line, birth.operator, conversion)
    return (
        f"- {line}",
        *_instead(birth),
        f"+ {changed or f'torch.{birth.operator}(x{conversion})'}",
    )


def _instead(birth: Birth) -> tuple[str, ...]:
    """Return a comment on the function of torch that computes the same without overflow."""
    after = [each.removeprefix("aten.") for each in birth.consumers]
    first = after[0] if after else ""
    if first == "log1p" or (first == "add" and "log" in after[:2]):
        return ("+ # log(1 + exp(x)) is torch.nn.functional.softplus(x), which does not overflow;",)
    if first == "add" and after[1:2] == ["reciprocal"]:
        return ("+ # 1 / (1 + exp(x)) is torch.sigmoid(-x), which does not overflow;",)
    if first != "sum":
        return ()
    if "log" in after[:3]:
        return ("+ # log(sum(exp(x))) is torch.logsumexp(x, dim), which does not overflow;",)
    return ("+ # exp(x) / sum(exp(x)) is torch.softmax(x, dim), which does not overflow;",)


def _inverse(birth: Birth) -> Callable[[float], float] | None:
    """Return the inverse of an exponential; None for another operator."""
    if birth.op != "aten.pow" or birth.overload != _OF_A_NUMBER:
        return _EXPONENTIALS.get(birth.op)
    base = birth.scalars[0] if birth.scalars else 0.0
    return (lambda power: math.log(power, base)) if base > 1 else None


def _conversion(birth: Birth, inverse: Callable[[float], float]) -> str:
    """Return the conversion of the argument to fp32; it clamps what is too large for fp32, too."""
    limit = inverse(FORMATS["fp32"].max)
    largest = birth.inputs[0].largest
    if largest is not None and largest < limit:
        return ".float()"
    return f".float(){_clamp(birth, limit)}"


def _clamp(birth: Birth, limit: float) -> str:
    """Return a clamp to numbers whose exponential does not overflow."""
    largest = math.floor(limit) - 1
    # They also overflow for numbers that are far below 0.
    return f".clamp(-{largest}, {largest})" if birth.op in _BOTH else f".clamp(max={largest})"


RULE = Rule(
    code="EXP_OVERFLOW",
    name="an exponential overflows",
    rows=(30,),
    citations=("OpenRLHF/OpenRLHF#1335", "NVIDIA/apex#812"),
    needs=frozenset({"births", "replays"}),
    judge=judge,
)
