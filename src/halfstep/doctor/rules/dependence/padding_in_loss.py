"""The padding at the ends of sequences counts in the loss.

The model then mostly learns to predict padding, and the loss looks better than it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_DECLARED = {
    "padding_idx": "the embedding has padding_idx={token}",
    "mask": "a mask that the model gets marks exactly these positions",
    "pad_sequence": "the program has padded these sequences with pad_sequence",
}


def judge(evidence: Evidence) -> Finding | None:
    """Find targets of padding that count."""
    found = evidence.of(Influence).padding
    if found is None:
        return None
    target = f"{found.target:g}"
    how = (
        f"cross_entropy(..., ignore_index={target}), or targets of -100 at these positions"
        if found.is_of_classes
        else "multiply the loss of each position by a mask, and divide by the sum of the mask"
    )
    return Finding(
        summary=f"{found.share:.0%} of the targets that count are padding (target {target}): the "
        "model is trained to predict it",
        facts=(_DECLARED[found.declared].format(token=found.token),),
        change=(f"+ # leave the padding out of the loss: {how}",),
        confidence=LIKELY,
        site=found.site,
    )


RULE = Rule(
    code="PADDING_IN_LOSS",
    name="padding that counts in the loss",
    rows=(35,),
    citations=("lukas-blecher/LaTeX-OCR#305", "01-ai/Yi#110"),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
