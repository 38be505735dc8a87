"""The data are ordered by class and not shuffled: each step learns one class and unlearns others."""

from __future__ import annotations

import math
from statistics import mean
from typing import TYPE_CHECKING

from halfstep.doctor.signals.data.classes import ClassOrder, SortedClasses
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_JUMPS = 1.5  # times the loss of the step before
_LEARNS_NOTHING = 0.8  # of the loss of a guess


def judge(evidence: Evidence) -> Finding | None:
    """Find classes that come one after the other, where the losses show that this does harm."""
    losses = {
        each.iteration: each.loss
        for each in evidence.numbers.steps
        if each.loss is not None and math.isfinite(each.loss)
    }
    for each in evidence.of(ClassOrder).lines:
        harm = _harm(each, losses)
        if harm:
            return Finding(
                summary=f"each step has targets of one class: two targets of a step are the same in "
                f"{each.pure:.0%} of the cases, any two targets in {each.chance:.0%}. The data are "
                "ordered by class and are not shuffled",
                facts=(harm, f"the {each.classes} classes come in the same order in each epoch"),
                change=(
                    "+ # shuffle: DataLoader(..., shuffle=True), or index with torch.randperm(...) "
                    "in each epoch",
                    *((f"  {each.model_line.text}",) if each.model_line else ()),
                ),
                confidence=LIKELY,
                site=each.model_line,
            )
    return None


def _harm(order: SortedClasses, losses: dict[int, float]) -> str:
    """Return what the order costs, in words; "" if the losses do not show it."""
    known = [(losses[step], first) for step, first in order.steps if step in losses]
    later = known[len(known) // 3 :]
    jumps = [
        (before[0], after[0])
        for before, after in zip(later, later[1:], strict=False)
        if after[1] and not before[1]
    ]
    if jumps:
        before, after = mean(each for each, _ in jumps), mean(each for _, each in jumps)
        if after >= _JUMPS * before > 0:
            return f"the loss is {before:.3g} at the end of a class and {after:.3g} at the next one"
        return ""
    guess = math.log(order.classes)
    last = mean(loss for loss, _ in later) if later else 0.0
    if last >= _LEARNS_NOTHING * guess:
        return f"the loss is {last:.3g} in the last steps, that of a guess is {guess:.3g}"
    return ""


RULE = Rule(
    code="CLASSES_IN_TURN",
    name="classes that come one after the other",
    rows=(60,),
    citations=("Deci-AI/super-gradients#416", "BVLC/caffe#1445"),
    needs=frozenset({"classes", "numbers"}),
    judge=judge,
    harmless=True,
)
