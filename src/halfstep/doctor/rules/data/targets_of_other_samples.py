"""The targets of a loss belong to other samples than the inputs of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.data.pairs import PairLedger
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find samples that get the targets of any sample each time that they are used."""
    for each in evidence.of(PairLedger).lines:
        return Finding(
            summary=f"the same inputs have other targets each time: for {each.samples} samples that "
            f"were used several times, {each.alike:.0%} of their targets are the same, and "
            f"{each.chance:.0%} of those of any two samples",
            facts=(
                f"{each.pairs} pairs of uses of one sample were compared",
                "inputs and targets are drawn in different orders, or one of them is shuffled alone",
            ),
            change=(
                "+ # index inputs and targets with the same permutation, or put both into one data "
                "set: TensorDataset(inputs, targets)",
                *((f"  {each.site.text}",) if each.site else ()),
            ),
            confidence=LIKELY,
            site=each.site,
        )
    return None


RULE = Rule(
    code="TARGETS_OF_OTHER_SAMPLES",
    name="targets that belong to other samples",
    rows=(60,),
    citations=("xudonmao/VMT#1",),
    needs=frozenset({"pairs"}),
    judge=judge,
    harmless=True,
)
