"""The loss of a masked language model counts the visible tokens, and leaves out the masked ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a loss whose targets are visible tokens of the input, and never masked ones."""
    for found in evidence.of(Influence).visible:
        return Finding(
            summary=f"the loss counts the {found.counted} visible tokens of the batch and leaves "
            f"out all {found.masked} that the program has replaced by the mask token "
            f"{found.token}, so the model learns to copy what it sees",
            facts=("each target that counts is the token of the input at the same place",),
            change=(
                (
                    "+ # leave the visible tokens out of the loss, and count the masked ones: "
                    "labels[~masked] = -100"
                ),
            ),
            confidence=LIKELY,
            site=found.site,
        )
    return None


RULE = Rule(
    code="MASKED_TARGETS_IGNORED",
    name="masked tokens that the loss leaves out",
    rows=(35,),
    citations=(
        "649453932/Bert-Chinese-Text-Classification-Pytorch#176",
        "huggingface/transformers#2946",
    ),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
