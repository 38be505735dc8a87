"""The loss gives every class a weight, but some logits are masked with -inf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_READ_ONLY_LABELS = ("nll_loss", "ctc_loss")  # losses that read only the logits of the labels


def judge(evidence: Evidence) -> Finding | None:
    """Find masked logits that go through a log-softmax into a sum over all classes."""
    for birth in evidence.births:
        if not birth.culprit or not birth.on_purpose:
            continue
        if any(each in birth.op for each in _READ_ONLY_LABELS):
            continue
        masked = birth.upstream("aten._log_softmax", "aten.log_softmax")
        if not masked or ("softmax" in birth.op and birth.dead_rows):
            continue
        return Finding(
            summary="the loss gives every class a weight, for example by label smoothing, but some "
            f"logits are masked with -inf: the loss is {birth.value}",
            facts=(
                birth.appears,
                "a mask of -inf is harmless only if the loss does not read the masked logits",
            ),
            change=(
                "- logits = logits.masked_fill(mask, float('-inf'))",
                "+ logits = logits.masked_fill(mask, -1e4)  # or label_smoothing=0",
            ),
            site=birth.user_site,
            module=birth.module,
        )
    return None


RULE = Rule(
    code="INFINITE_LOGITS_IN_LOSS",
    name="masked logits under label smoothing",
    rows=(33,),
    citations=(
        "candle-org/MindAct#1633",
        "sooftware/kospeech#37",
    ),
    needs=frozenset({"births"}),
    judge=judge,
)
