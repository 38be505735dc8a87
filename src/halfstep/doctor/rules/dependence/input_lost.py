"""The predictions do not depend on the input: an operator gives the same result for every sample.

A softmax or a norm over one element is constant, and so are units that are 0 or saturated for every
input. The last position of a padded sequence is constant for all sequences that end before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find predictions that are the same for every input."""
    found = evidence.of(Influence).lost
    if found is None:
        return None
    name = found.at.op.strip("_")
    reason, change = {
        "softmax": (
            f"{name} over a dimension of size 1 is constant",
            "for one logit, use sigmoid() and a binary cross entropy",
        ),
        "norm": (
            "a norm over one element is its bias",
            "normalise over the features, not over one element",
        ),
        "saturated": (
            f"{name} gives the same values for every sample",
            "smaller initial weights or learning rate, normalised inputs, or another activation",
        ),
        "unused": (
            f"{name} takes a part of the features that is the same for every sample",
            "look at the layers before: without batch_first=True, an attention mixes samples",
        ),
        "zeros": (
            f"{name} takes only zeros of their features, as beyond the end of a sequence",
            "take the last position of each sequence by its length, or the last state of the layer",
        ),
    }[found.how]
    those = f" of {found.samples} of {found.count} samples" if found.samples else ""
    return Finding(
        summary=f"the predictions{those} do not depend on the input: {reason}",
        facts=(
            "these predictions are equal, and the inputs are not"
            if found.samples
            else "each way from the input to the predictions leads through it"
            if found.how == "norm"
            else "with the samples in another order, no prediction changes",
        ),
        change=(f"+ # {change}",),
        confidence=LIKELY,
        site=found.at.site,
        module=found.at.module,
    )


RULE = Rule(
    code="INPUT_LOST",
    name="predictions that do not depend on the input",
    rows=(11,),
    citations=("jvargasmu/population_estimation#68", "vllm-project/vllm#18313"),
    needs=frozenset({"influence"}),
    judge=judge,
    explains=("NO_GRADIENTS", "PART_WITHOUT_GRADIENT"),
    harmless=True,
)
