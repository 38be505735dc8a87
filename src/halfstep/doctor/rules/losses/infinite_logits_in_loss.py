"""The loss weights logits of -inf: masked classes have a weight, or a label is a masked class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record import PRODUCTS
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_READ_ONLY_LABELS = ("nll_loss", "ctc_loss")  # losses that read only the logits of the labels

_EXPECTATIONS = {"aten.mul", *PRODUCTS}


def judge(evidence: Evidence) -> Finding | None:
    """Find masked logits that go through a log-softmax into a sum over all classes."""
    for birth in evidence.births:
        if not birth.culprit or not birth.on_purpose:
            continue
        masked = birth.upstream("aten._log_softmax", "aten.log_softmax")
        if birth.op in _EXPECTATIONS and not masked and _is_normalised(birth):
            return _of_an_expectation(birth)
        if masked and "nll_loss" in birth.op and birth.value == "inf":
            return _of_the_label(birth)
        if any(each in birth.op for each in _READ_ONLY_LABELS):
            continue
        if not masked or ("softmax" in birth.op and birth.dead_rows):
            continue
        return Finding(
            summary="the loss gives every class a weight, for example by label smoothing, but some "
            f"logits are masked with -inf: the loss is {birth.value}",
            facts=(
                birth.appears,
                "a mask of -inf is harmless only if the loss gives the masked logits no weight",
            ),
            change=(
                "- logits = logits.masked_fill(mask, float('-inf'))",
                "+ logits = logits.masked_fill(mask, -1e4)  # or label_smoothing=0",
            ),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _is_normalised(birth: Birth) -> bool:
    """Return whether an argument is a logarithm of probabilities that is written out."""
    if birth.upstream("aten.logsumexp"):
        return True
    return all(birth.upstream(each) for each in ("aten.exp", "aten.sum", "aten.log", "aten.sub"))


def _of_an_expectation(birth: Birth) -> Finding:
    return Finding(
        summary="a term of the loss, such as an entropy, multiplies logarithms of probabilities by "
        "probabilities: where a logit is masked with -inf, this is 0 * -inf, which is NaN",
        facts=(
            birth.appears,
            "a mask of -inf is harmless only if the loss gives the masked logits no weight",
        ),
        change=(
            "- logits = logits.masked_fill(mask, float('-inf'))",
            "+ logits = logits.masked_fill(mask, -1e4)",
        ),
        site=birth.user_site,
        module=birth.module,
    )


def _of_the_label(birth: Birth) -> Finding:
    return Finding(
        summary="the logit of a label is masked with -inf: its probability is 0, and the loss is "
        "inf",
        facts=(birth.appears, "the loss reads only the logits of the labels"),
        change=(
            "- logits = logits.masked_fill(mask, float('-inf'))",
            "+ mask = mask.scatter(-1, labels.unsqueeze(-1), False)  # keep the labels' own logits",
            "+ logits = logits.masked_fill(mask, float('-inf'))",
        ),
        site=birth.user_site,
        module=birth.module,
    )


RULE = Rule(
    code="INFINITE_LOGITS_IN_LOSS",
    name="a loss of masked logits",
    rows=(33,),
    citations=(
        "candle-org/MindAct#1633",
        "sooftware/kospeech#37",
    ),
    needs=frozenset({"births"}),
    judge=judge,
)
