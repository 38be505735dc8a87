"""The losses of an accumulation are divided by the number of micro-batches twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.divisions import Divisions
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_SLACK = 0.25


def judge(evidence: Evidence) -> Finding | None:
    """Find losses that are divided twice by about the number of backward passes of a step."""
    for found in evidence.of(Divisions).lines:
        if abs(found.per_step - found.divisor) > _SLACK * found.divisor:
            continue
        return Finding(
            summary=f"the loss is divided by {found.divisor} twice, and a step has "
            f"{found.per_step:.3g} micro-batches: its gradients are {found.divisor} times smaller "
            "than those of the mean over its samples",
            facts=(f"so it was in {found.count} of the first backward passes",),
            change=(
                "+ # divide once: accelerator.backward(loss) and the Trainer of transformers",
                "+ # divide by gradient_accumulation_steps themselves",
            ),
            confidence=LIKELY,
            site=found.site,
        )
    return None


RULE = Rule(
    code="LOSS_DIVIDED_TWICE",
    name="a loss that is divided by the number of micro-batches twice",
    rows=(11,),
    citations=("huggingface.co/docs/accelerate/usage_guides/gradient_accumulation",),
    needs=frozenset({"divisions"}),
    judge=judge,
    harmless=True,
)
