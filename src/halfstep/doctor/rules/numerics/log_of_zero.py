"""The argument of a logarithm is 0: the result is -inf, and the gradient divides by 0.

If the argument is so small that 1 / x overflows, only the gradient is inf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_converted_argument
from halfstep.doctor.verdict import Finding, Rule
from halfstep.formats import FORMATS
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_LOGS = {"aten.log", "aten.log2", "aten.log10"}
_PLUS_ONE, _LOGIT = "aten.log1p", "aten.logit"
_TIMES, _TIMES_PLUS_ONE = "aten.xlogy", "aten.special_xlog1py"  # x * log(y) and x * log(1 + y)
_POLES = {_PLUS_ONE: "-1", _TIMES_PLUS_ONE: "-1", _LOGIT: "0 or 1"}


def judge(evidence: Evidence) -> Finding | None:
    """Find a logarithm that returns inf or NaN because its input is exactly 0 (-1 for log1p)."""
    for birth in evidence.births:
        if not birth.culprit:
            continue
        form = birth.inputs[0].format if birth.inputs else ""
        if _is_of_zero(birth):
            summary = (
                f"{birth.called} gets exactly {_POLES.get(birth.op, '0')} in {form}, and "
                f"returns {birth.value} {counted(birth.output.infs, 'time')}"
            )
        elif smallest := _near_zero(birth):
            log = birth.forward_op.removeprefix("aten.")
            summary = (
                f"{log}() gets {smallest:.2g} in {form}, so near 0 that its derivative is "
                f"{birth.value} {counted(birth.output.infs, 'time')}"
            )
        else:
            continue
        return Finding(
            summary=summary,
            facts=(
                birth.appears,
                f"its input came from {', '.join(birth.producers[:2]) or 'outside the step'}",
                *evidence.fp32_facts(birth.iteration, "the zeros come from half precision"),
            ),
            change=_change(birth),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _change(birth: Birth) -> tuple[str, ...]:
    if birth.op == _LOGIT:
        return ("+ # use the logits themselves, or limit the argument: torch.logit(x, eps=1e-3)",)
    line = birth.user_site.text if birth.user_site else ""
    change: tuple[str, ...]
    if _is_sum(birth) and birth.upstream("aten.exp"):
        return (
            "+ # add up the logarithms themselves, before exp(): torch.logsumexp(logarithms, dim)",
        )
    if birth.upstream("aten._softmax", "aten._safe_softmax") or _is_softmax_by_hand(birth):
        change = (
            "+ # use log_softmax or a loss that takes logits: neither computes the probability",
            "+ loss = torch.nn.functional.cross_entropy(logits, labels)",
        )
    elif birth.upstream("aten.sigmoid"):
        change = ("+ # use logsigmoid or binary_cross_entropy_with_logits, which take logits",)
    else:
        limited = f".float().clamp(min={'-1 + ' * (_POLES.get(birth.op) == '-1')}1e-6)"
        changed = with_converted_argument(line, birth.operator, limited)
        change = (f"- {line}", f"+ {changed}" if changed else f"+ # limit its argument: x{limited}")
    if "aten.div" in birth.producers[:1]:
        change += ("+ # or, for p * log(p / q) with p = 0: torch.xlogy(p, p) - p * torch.log(q)",)
    return change


def _is_sum(birth: Birth) -> bool:
    """Return whether the argument is a sum: the last input of the logarithm or its backward."""
    argument = len(birth.inputs) - 1
    return any(
        each.op == "aten.sum"
        for each in birth.lineage
        if (each.distance, each.input) == (1, argument)
    )


def _is_softmax_by_hand(birth: Birth) -> bool:
    """Return whether the argument is an exponential that is divided by a sum."""
    return bool(birth.upstream("aten.exp") and birth.upstream("aten.div", "aten.sum"))


def _near_zero(birth: Birth) -> float | None:
    """Return the argument of a logarithm whose derivative alone overflows, other than in fp16."""
    if birth.op != "aten.div" or birth.forward_op not in _LOGS or len(birth.inputs) < 2:
        return None
    argument = birth.inputs[1]
    if argument.format == "fp16" or argument.format not in FORMATS or not argument.smallest:
        return None
    # For fp16, DERIVATIVE_OVERFLOWS says more: it is the precision.
    return argument.smallest if argument.smallest * FORMATS[argument.format].max < 1 else None


def _is_of_zero(birth: Birth) -> bool:
    if birth.op in (_PLUS_ONE, _TIMES_PLUS_ONE):
        return birth.inputs[-1].lowest == -1
    if birth.op == _TIMES:
        return birth.kind == "inf" and birth.inputs[-1].zeros > 0
    if birth.op == _LOGIT:
        return birth.kind == "inf"
    return birth.op in _LOGS and birth.inputs[0].zeros > 0


RULE = Rule(
    code="LOG_OF_ZERO",
    name="the logarithm of zero",
    rows=(31,),
    citations=("harvardnlp/annotated-transformer#109",),
    needs=frozenset({"births", "replays"}),
    judge=judge,
)
