"""The targets of a regression are among the inputs of the network, which learns to copy them.

The target of each step of a forecast is fed in the same step, a column of a table was not removed,
or a denoiser is compared with its noisy input. The loss falls far, and the model is useless where
the targets are unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a regression whose targets the network is given."""
    for found in evidence.of(Influence).copied:
        line = f", line {found.at.site.line}" if found.at.site else ""
        return Finding(
            summary="the targets of the loss are among the inputs of the network, each at the "
            "place of its prediction: the network learns to copy them",
            facts=(
                f"{found.at.op}{line} is given the {found.count} targets of the last step",
                (
                    f"with another number in place of one target in each of {found.samples} "
                    f"samples, the prediction of this target changes in {found.moved}"
                ),
            ),
            change=(
                "+ # compare with what the network is not given, or take the targets out of its",
                "+ # inputs; a forecast is given the values before those that it predicts",
            ),
            confidence=LIKELY,
            site=found.site,
        )
    return None


RULE = Rule(
    code="TARGETS_AMONG_INPUTS",
    name="targets that are among the inputs of the network",
    rows=(35,),
    citations=("irom-princeton/dppo#14",),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
