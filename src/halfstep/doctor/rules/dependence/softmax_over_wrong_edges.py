"""The weights of attention in a graph are normalised over the wrong edges of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find weights that do not sum to 1 over the messages that they weigh."""
    for found in evidence.of(Influence).edges:
        return Finding(
            summary=f"the weights of {found.edges} edges sum to 1 over the edges of one end, and "
            "the messages are summed at the other, so what a node gets is no weighted mean",
            facts=(
                f"the weights into a node sum to {found.smallest:.2g} up to {found.largest:.2g}",
                f"into {found.off} of {found.nodes} nodes, the sum is off by more than a fifth",
            ),
            change=(
                "+ # normalise with the index with which the messages are summed, usually that of",
                "+ # the targets: softmax(scores, target), index_add_(0, target, weights * values)",
            ),
            confidence=LIKELY,
            site=found.at.site,
            module=found.at.module,
        )
    return None


RULE = Rule(
    code="SOFTMAX_OVER_WRONG_EDGES",
    name="attention in a graph that is normalised over the wrong edges",
    rows=(35,),
    citations=("snap-stanford/pretrain-gnns#49",),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
