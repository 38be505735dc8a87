"""Binary cross entropy of probabilities runs under autocast; torch refuses this on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record import HALVES
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Call, Evidence

_NAMES = {"binary_cross_entropy", "BCELoss"}
_OPERATOR = "aten.binary_cross_entropy"
_NEAR = 2


def judge(evidence: Evidence) -> Finding | None:
    """Find torch's error or, without it, inf or NaN from the loss, or a half-precision input."""
    ending = evidence.ending
    site = None
    if ending.kind == "RuntimeError" and "unsafe to autocast" in ending.message:
        fact, site = f"RuntimeError: {ending.message.split('.')[0]}", ending.site
    else:
        born = [each for each in evidence.births if each.culprit and _is_of_entropy(each)]
        calls = [
            each
            for each in evidence.calls
            if each.name in _NAMES
            and each.autocast
            and (each.rounded or HALVES & {*each.formats[:1]})
        ]
        if born:
            site = born[0].user_site
            fact = (
                f"{born[0].called} in the {born[0].phase} pass gave {born[0].value} in "
                f"{born[0].output.format}"
            )
        elif calls:
            site = calls[0].site
            fact = (
                f"the probabilities were {_format(calls[0])} under autocast; on a GPU, torch "
                f"refuses this; skipped steps: {evidence.numbers.skips}"
            )
        else:
            return None
    return Finding(
        summary="binary cross entropy of a sigmoid is unsafe in half precision: a probability can "
        "round to 0 or 1, and the gradient then divides by 0",
        facts=(fact,),
        change=(
            "- loss = torch.nn.BCELoss()(torch.sigmoid(logits), labels)",
            "+ loss = torch.nn.BCEWithLogitsLoss()(logits, labels)",
        ),
        site=site,
    )


def _format(call: Call) -> str:
    if call.rounded:
        return f"{call.formats[0]} copies of {call.autocast}"
    return call.formats[0]


def _is_of_entropy(birth: Birth) -> bool:
    """Return whether the loss, or the cast of its gradient to half precision, made inf or NaN."""
    if _OPERATOR in birth.op:
        return True
    made = [each for each in birth.upstream(_OPERATOR) if each.distance <= _NEAR]
    return birth.phase == "backward" and birth.output.format in HALVES and bool(made)


RULE = Rule(
    code="BCE_UNDER_AUTOCAST",
    name="BCELoss under autocast",
    rows=(32,),
    citations=("pytorch/pytorch#61098", "Megvii-BaseDetection/YOLOX#336"),
    needs=frozenset({"ending", "births", "calls", "numbers"}),
    judge=judge,
    explains=("GRADIENTS_VANISH",),
)
