"""Edges of the graphs of a batch are joined without an offset.

The nodes of a batch of graphs follow one another. The edges of each graph must be moved by the
number of nodes before it; otherwise, they all lie among the nodes of the first graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find graphs whose edges lie among the nodes of one graph."""
    for found in evidence.of(Influence).offsets:
        return Finding(
            summary=f"all {found.edges} edges of a batch of {found.graphs} graphs lie among its "
            f"first {found.most} of {found.nodes} nodes: the edges are not moved by the number of "
            "nodes before their graph, so most nodes have none",
            facts=(f"the largest graph has at least {found.most} nodes",),
            change=(
                "+ # where the graphs are joined, add to the edges of each the number of nodes so",
                "+ # far: edges.append(graph.edges + offset); offset += number of its nodes",
            ),
            confidence=LIKELY,
            site=found.at.site,
            module=found.at.module,
        )
    return None


RULE = Rule(
    code="EDGES_WITHOUT_OFFSET",
    name="edges of a batch of graphs without an offset",
    rows=(11,),
    citations=("pyg-team/pytorch_geometric#594", "pyg-team/pytorch_geometric#3021"),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
