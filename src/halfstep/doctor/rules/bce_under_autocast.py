"""Binary cross entropy on probabilities under autocast, which torch refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


_NAMES = {"binary_cross_entropy", "BCELoss"}
_HALVES = {"fp16", "bf16"}


def judge(evidence: Evidence) -> Finding | None:
    """Find torch's refusal, or where torch does not refuse what comes of it."""
    ending = evidence.ending
    site = None
    if ending.kind == "RuntimeError" and "unsafe to autocast" in ending.message:
        fact, site = f"RuntimeError: {ending.message.split('.')[0]}", ending.site
    else:
        born = [
            each for each in evidence.births if each.culprit and "binary_cross_entropy" in each.op
        ]
        calls = [
            each
            for each in evidence.calls
            if each.name in _NAMES and each.autocast and _HALVES & {*each.formats[:1]}
        ]
        if born:
            site = born[0].user_site
            fact = f"{born[0].op} of {born[0].inputs[0].format} probabilities gave {born[0].kind}"
        elif calls and evidence.numbers.skips:
            site = calls[0].site
            fact = (
                f"it was given {calls[0].formats[0]} probabilities under autocast, and "
                f"{evidence.numbers.skips} steps were skipped"
            )
        else:
            return None
    return Finding(
        summary="binary cross entropy of a sigmoid is unsafe in half precision: a probability "
        "rounds to 0 or 1, and its gradient divides by 0",
        facts=(fact,),
        change=(
            "- loss = torch.nn.BCELoss()(torch.sigmoid(logits), labels)",
            "+ loss = torch.nn.BCEWithLogitsLoss()(logits, labels)",
        ),
        site=site,
    )


RULE = Rule(
    code="BCE_UNDER_AUTOCAST",
    name="BCELoss under autocast",
    rows=(32,),
    citations=("pytorch/pytorch#61098", "Megvii-BaseDetection/YOLOX#336"),
    needs=frozenset({"ending", "births", "calls", "numbers"}),
    judge=judge,
)
