"""Gradients are taken with `create_graph=True`, and no loss is differentiated through them.

What was computed from them, such as a penalty or the weights that an inner step has adapted, is not
a part of any loss, and so it trains nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.values.unused_graphs import UnusedGraphs
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 3  # steps


def judge(evidence: Evidence) -> Finding | None:
    """Find a line whose gradients have a graph that is never used."""
    for each in evidence.of(UnusedGraphs).lines:
        if each.steps < _FEWEST:
            continue
        what = "the weights that are computed" if each.adapts else "the number that is computed"
        return Finding(
            summary=f"in {counted(each.steps, 'step')}, gradients are taken with create_graph=True "
            f"and {what} from them {'are' if each.adapts else 'is'} in no loss: nothing is "
            "differentiated through these gradients",
            facts=("the loop reads no value that was computed from them, either",),
            change=(
                "+ # compute the loss with the weights that this line adapts, not those of before:"
                if each.adapts
                else "+ # add what is computed from these gradients to the loss:",
                *((f"  {each.site.text}",) if each.site else ()),
            ),
            confidence=LIKELY,
            site=each.site,
        )
    return None


RULE = Rule(
    code="GRAPH_OF_GRADIENTS_UNUSED",
    name="gradients with a graph that no loss uses",
    rows=(11,),
    citations=("LixiangHan/GANs-for-1D-Signal#7", "Ha0Tang/AttentionGAN#27"),
    needs=frozenset({"unused graphs"}),
    judge=judge,
    harmless=True,
)
