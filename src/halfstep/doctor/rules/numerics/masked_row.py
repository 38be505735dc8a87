"""Softmax is applied to a row in which every position is masked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a softmax that returns NaN for rows with only -inf."""
    for birth in evidence.births:
        if birth.culprit and "softmax" in birth.op and birth.dead_rows:
            return Finding(
                summary=f"softmax gets {counted(birth.dead_rows, 'row')} in which every position "
                "is -inf: the result is 0/0 = NaN",
                facts=(birth.appears,),
                change=(
                    "+ # leave one position of each row unmasked, or set the row's weights to 0:",
                    "+ empty = (scores == -torch.inf).all(-1, keepdim=True)",
                    "+ weights = scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)",
                ),
                site=birth.user_site,
                module=birth.module,
            )
    return None


RULE = Rule(
    code="FULLY_MASKED_ROW",
    name="softmax over a fully masked row",
    rows=(24,),
    citations=("pytorch/pytorch#26098", "huggingface/transformers#17437"),
    needs=frozenset({"births"}),
    judge=judge,
)
