"""A logarithm gets 0: its result is -inf, and its gradient divides by 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_LOGS = {"aten.log", "aten.log2", "aten.log10"}
_PLUS_ONE = "aten.log1p"


def judge(evidence: Evidence) -> Finding | None:
    """Find a birth in a logarithm of an input with exact zeros."""
    for birth in evidence.births:
        if not birth.culprit or not _is_of_zero(birth):
            continue
        form = birth.inputs[0].format
        fp32 = [each for each in evidence.replays if each.name == "fp32" and not each.note]
        precise = bool(fp32) and fp32[0].finite
        return Finding(
            summary=f"{birth.operator} gets exactly {'-1' if birth.op == _PLUS_ONE else '0'} in "
            f"{form}, and returns -inf {counted(birth.output.infs, 'time')}",
            facts=(
                birth.appears,
                f"its input came from {', '.join(birth.producers[:2]) or 'outside the step'}",
                "the same step in fp32 is finite: the zeros come from half precision"
                if precise
                else "the same step in fp32 is not finite either",
            ),
            change=(
                "+ # use log_softmax or a loss that takes logits: neither computes the probability",
                "+ loss = torch.nn.functional.cross_entropy(logits, labels)",
            ),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _is_of_zero(birth: Birth) -> bool:
    if birth.op == _PLUS_ONE:
        return birth.inputs[0].lowest == -1
    return birth.op in _LOGS and birth.inputs[0].zeros > 0


RULE = Rule(
    code="LOG_OF_ZERO",
    name="the logarithm of zero",
    rows=(31,),
    citations=("harvardnlp/annotated-transformer#109",),
    needs=frozenset({"births", "replays"}),
    judge=judge,
)
