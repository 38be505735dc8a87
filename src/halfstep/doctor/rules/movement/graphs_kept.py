"""A running sum or a list keeps the losses with their graphs, so that memory grows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.signals.movement.kept_graphs import LOSSES, KeptGraphs
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 8  # steps
_MOST = 0.8  # of the first losses
_ADDED = re.compile(r"^(.*\+=\s*)([\w.]+)$")
_APPENDED = re.compile(r"^(.*\.append\(\s*)([\w.]+)(\s*\))$")


def judge(evidence: Evidence) -> Finding | None:
    """Find a sum over steps, or losses that are alive long after their steps."""
    kept = evidence.of(KeptGraphs)
    text = kept.site.text if kept.site else ""
    if kept.steps >= _FEWEST:
        summary = (
            f"a sum of losses keeps the graphs of {kept.steps} steps, because the losses are added "
            "as tensors with gradients: memory grows with each step"
        )
        change = _ADDED.sub(r"\1\2.item()", text)
        fact = "between these additions, an optimizer has changed the weights"
    elif kept.losses >= _MOST * LOSSES:
        summary = (
            f"{kept.losses} of the first {LOSSES} losses are still alive with their graphs, long "
            "after their steps: something keeps them, and memory grows with each step"
        )
        change = _APPENDED.sub(r"\1\2.item()\3", text)
        fact = "a list of numbers, loss.item(), or of loss.detach() keeps no graphs"
    else:
        return None
    return Finding(
        summary=summary,
        facts=(fact,),
        change=(f"- {text}", f"+ {change}")
        if text and change != text
        else ("+ # keep loss.item(), or loss.detach(), in place of the loss",),
        confidence=LIKELY,
        site=kept.site,
    )


RULE = Rule(
    code="GRAPHS_KEPT",
    name="losses that are kept with their graphs",
    rows=(58,),
    citations=("BatsResearch/labelmodels#4", "google/brax#152", "rballester/tntorch#19"),
    needs=frozenset({"kept_graphs"}),
    judge=judge,
    harmless=True,
)
