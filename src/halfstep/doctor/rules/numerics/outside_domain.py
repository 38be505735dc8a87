"""The argument of a root, a logarithm or an arccosine is outside its domain; the result is NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record import HALVES, PRODUCTS
from halfstep.doctor.record.sites import place
from halfstep.doctor.record.source import with_converted_argument
from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence, Maker

_NUMBER_AS_BASE = "Scalar"  # the overload of `pow` for a Python number and a tensor as exponent
_SQUARES = {"aten.mul", "aten.pow", "aten.square"}
_AT_LEAST_0 = ("at least 0", "min=1e-6", "1.0")
_ABOVE_0 = ("above 0", "min=1e-6", "1.0")
_UP_TO_1 = ("between -1 and 1", "-1 + 1e-6, 1 - 1e-6", "0.0")
_FROM_0_TO_1 = ("between 0 and 1", "1e-6, 1 - 1e-6", "0.5")
_ABOVE_MINUS_1 = ("above -1", "min=-1 + 1e-6", "0.0")
# Of each operator: its domain in words, the limits of a clamp to it, and a number in it.
_DOMAINS = {
    "aten.sqrt": _AT_LEAST_0,
    "aten.pow": _AT_LEAST_0,
    "aten.rsqrt": _ABOVE_0,
    "aten.log": _ABOVE_0,
    "aten.log2": _ABOVE_0,
    "aten.log10": _ABOVE_0,
    "aten.log1p": _ABOVE_MINUS_1,
    "aten.xlogy": _ABOVE_0,
    "aten.special_xlog1py": _ABOVE_MINUS_1,
    "aten.logit": _FROM_0_TO_1,
    "aten.special_ndtri": _FROM_0_TO_1,
    "aten.erfinv": _UP_TO_1,
    "aten.acos": _UP_TO_1,
    "aten.asin": _UP_TO_1,
    "aten.atanh": _UP_TO_1,
    "aten.acosh": ("at least 1", "min=1 + 1e-6", "2.0"),
}
_OF_THE_LAST = {"aten.xlogy", "aten.special_xlog1py"}  # the logarithm is that of the last argument


def judge(evidence: Evidence) -> Finding | None:
    """Find a function that returns NaN for an argument outside its domain."""
    for birth in evidence.births:
        if not birth.culprit or birth.phase != "forward" or birth.kind != "nan":
            continue
        if birth.op not in _DOMAINS or birth.overload == _NUMBER_AS_BASE:
            continue
        domain, limits, inside = _DOMAINS[birth.op]
        is_fp32_finite = evidence.exact_is_finite(birth.iteration) is True
        rounded = _rounded_elsewhere(birth, is_fp32_finite)
        facts = [
            birth.appears,
            *evidence.fp32_facts(birth.iteration, "rounding moved the argument out of the domain"),
        ]
        change = [f"- {birth.user_site.text}"] if birth.user_site else []
        if _is_cancelled_variance(birth):
            facts.append("the argument is a mean of squares minus the square of a mean")
            change = [
                "+ # a variance without this difference: (x - mean).square().mean(...), with x",
                "+ # and its mean in fp32",
            ]
            rounded = None
        elif "aten.where" in birth.swallowed:
            facts.append(
                "torch.where removes NaN from the loss, not from the gradient: 0 * NaN = NaN"
            )
            change.append(
                "+ # select the argument, not the result: "
                f"torch.where(condition, x, {inside}).{birth.operator}()"
            )
        else:
            in_fp32, cast = (
                ("", "") if birth.inputs[0].format == "fp32" else (" in fp32 and", ".float()")
            )
            conversion = f"{cast}.clamp({limits})"
            line = birth.user_site.text if birth.user_site else ""
            name = birth.operator.removeprefix("special_")
            changed = with_converted_argument(line, name, conversion)
            change.append(
                f"+ {changed}"
                if changed
                else f"+ # the same line with its argument{in_fp32} clamped: x{conversion}"
            )
        if rounded and rounded.site:
            facts.append(
                f"the argument is computed from the result of {rounded.operator} in "
                f"{rounded.format} {place('', rounded.site)}"
            )
            change += [
                f"- {rounded.site.text}",
                "+ # the same line in fp32, with its inputs cast by .float(), inside this block:",
                "+ with torch.autocast(device_type, enabled=False):",
            ]
        return Finding(
            summary=f"{birth.called} returns NaN {counted(birth.output.nans, 'time')}: its "
            f"argument is {_outermost(birth):.9g}, and must be {domain}",
            facts=tuple(facts),
            change=tuple(change),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _rounded_elsewhere(birth: Birth, is_fp32_finite: bool) -> Maker | None:
    """Return a half-precision operator of another line whose rounding error is in the argument.

    A product comes first, for other linear operators may be exact.

    Args:
        birth: The function that returned NaN.
        is_fp32_finite: Whether the step is finite in fp32. Otherwise, only a sum that the rounding
            error is part of is a sign that it may be the cause.
    """
    candidates = [
        each
        for each in birth.lineage
        if each.input == 0 and each.format in HALVES
        if each.additions or (each.additions == 0 and is_fp32_finite)
        if each.site and each.site.text and each.site != birth.user_site
    ]
    return min(candidates, key=lambda each: each.op not in PRODUCTS, default=None)


def _is_cancelled_variance(birth: Birth) -> bool:
    """Return whether the argument is a variance that is computed as E[x^2] - E[x]^2."""
    ops = [(each.distance, each.op) for each in birth.lineage]
    for distance, op in ops:
        if op == "aten.sub" and distance <= 2:
            operands = [each for far, each in ops if far == distance + 1]
            means = [each for each in operands if "mean" in each]
            return bool(means) and any(each in _SQUARES for each in operands)
    return False


def _outermost(birth: Birth) -> float:
    """Return the element of the argument that is farthest from the domain."""
    argument = birth.inputs[-1 if birth.op in _OF_THE_LAST else 0]
    lowest, largest = argument.lowest or 0.0, argument.largest or 0.0
    is_bounded = _DOMAINS[birth.op] in (_UP_TO_1, _FROM_0_TO_1)
    return largest if is_bounded and largest > -lowest else lowest


RULE = Rule(
    code="OUTSIDE_DOMAIN",
    name="an argument outside a function's domain",
    rows=(31,),
    citations=("pytorch/pytorch#187297", "anthonymlortiz/lcn#4"),
    needs=frozenset({"births", "replays"}),
    judge=judge,
)
