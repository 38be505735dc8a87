"""A running sum, a tensor or a list keeps losses with their graphs, so that memory grows."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from halfstep.doctor.signals.movement.kept_graphs import ADDS, LOSSES, KeptGraphs
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 8  # steps
_MOST = 0.8  # of the first losses
_ADDED = re.compile(r"^(.*\+=\s*)([\w.]+)$")
_APPENDED = re.compile(r"^(.*\.append\(\s*)([\w.]+)(\s*\))$")


def judge(evidence: Evidence) -> Finding | None:
    """Find a tensor that goes on from step to step, or losses that are alive long after theirs."""
    kept = evidence.of(KeptGraphs)
    text = kept.site.text if kept.site else ""
    if kept.steps >= _FEWEST:
        is_sum = kept.by in ADDS
        what, why = (
            ("a sum of losses", "the losses are added as tensors")
            if is_sum
            else ("one tensor", "in each step, the loop puts values into it")
        )
        summary = (
            f"{what} keeps the graphs of {kept.steps} steps, because {why} with gradients: memory "
            "grows with each step"
        )
        change = _ADDED.sub(r"\1\2.item()", text) if is_sum else _detached(text)
        fact = "between these steps, an optimizer has changed the weights"
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


def _detached(text: str) -> str:
    """Return an assignment to an element with a value without its graph, or else the text."""
    try:
        (statement,) = ast.parse(text).body
    except (SyntaxError, ValueError):
        return text
    if not isinstance(statement, ast.Assign) or not isinstance(
        statement.targets[-1], ast.Subscript
    ):
        return text
    value = ast.get_source_segment(text, statement.value)
    if value is None:
        return text
    is_closed = isinstance(statement.value, ast.Call | ast.Name | ast.Attribute | ast.Subscript)
    return text.replace(value, f"{value if is_closed else f'({value})'}.detach()")


RULE = Rule(
    code="GRAPHS_KEPT",
    name="losses that are kept with their graphs",
    rows=(58,),
    citations=("BatsResearch/labelmodels#4", "google/brax#152", "rballester/tntorch#19"),
    needs=frozenset({"kept_graphs"}),
    judge=judge,
    harmless=True,
)
