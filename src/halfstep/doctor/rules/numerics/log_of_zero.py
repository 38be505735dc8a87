"""The argument of a logarithm is 0: the result is -inf, and the gradient divides by 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_converted_argument
from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_LOGS = {"aten.log", "aten.log2", "aten.log10"}
_PLUS_ONE, _LOGIT = "aten.log1p", "aten.logit"
_POLES = {_PLUS_ONE: "-1", _LOGIT: "0 or 1"}


def judge(evidence: Evidence) -> Finding | None:
    """Find a logarithm that returns inf or NaN because its input is exactly 0 (-1 for log1p)."""
    for birth in evidence.births:
        if not birth.culprit or not _is_of_zero(birth):
            continue
        form = birth.inputs[0].format
        return Finding(
            summary=f"{birth.called} gets exactly {_POLES.get(birth.op, '0')} in {form}, and "
            f"returns {birth.value} {counted(birth.output.infs, 'time')}",
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
    if birth.upstream("aten._softmax", "aten._safe_softmax") or _is_softmax_by_hand(birth):
        change = (
            "+ # use log_softmax or a loss that takes logits: neither computes the probability",
            "+ loss = torch.nn.functional.cross_entropy(logits, labels)",
        )
    elif birth.upstream("aten.sigmoid"):
        change = ("+ # use logsigmoid or binary_cross_entropy_with_logits, which take logits",)
    else:
        limited = f".float().clamp(min={'-1 + ' * (birth.op == _PLUS_ONE)}1e-6)"
        changed = with_converted_argument(line, birth.operator, limited)
        change = (f"- {line}", f"+ {changed}" if changed else f"+ # limit its argument: x{limited}")
    if "aten.div" in birth.producers[:1]:
        change += ("+ # or, for p * log(p / q) with p = 0: torch.xlogy(p, p) - p * torch.log(q)",)
    return change


def _is_softmax_by_hand(birth: Birth) -> bool:
    """Return whether the argument is an exponential that is divided by a sum."""
    return bool(birth.upstream("aten.exp") and birth.upstream("aten.div", "aten.sum"))


def _is_of_zero(birth: Birth) -> bool:
    if birth.op == _PLUS_ONE:
        return birth.inputs[0].lowest == -1
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
