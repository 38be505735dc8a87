"""The data are ordered by class and not shuffled: a step learns one class and unlearns others."""

from __future__ import annotations

import math
from statistics import mean
from typing import TYPE_CHECKING

from halfstep.doctor.record.passes import PassLedger
from halfstep.doctor.remedies import with_loader_argument
from halfstep.doctor.signals.data.classes import ClassOrder, SortedClasses
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_JUMPS = 1.5  # times the loss at the end of a class
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
                summary="each step has targets of one class: two targets of a step are the same in "
                f"{each.pure:.0%} of the cases, any two targets in {each.chance:.0%}. The data are "
                "ordered by class and are not shuffled",
                facts=(harm, f"the {each.classes} classes come in the same order in each epoch"),
                change=_shuffled(evidence)
                or (
                    (
                        "+ # shuffle: DataLoader(..., shuffle=True), or index with "
                        "torch.randperm(...) in each epoch"
                    ),
                    *((f"  {each.model_line.text}",) if each.model_line else ()),
                ),
                confidence=LIKELY,
                site=each.model_line,
            )
    return None


def _shuffled(evidence: Evidence) -> tuple[str, ...]:
    """Return the change of the only loader of the training; none if there are several."""
    lines = [each for each in evidence.of(PassLedger).lines if not each.draws_order]
    if len(lines) != 1 or lines[0].loaders != 1:
        return ()
    return with_loader_argument(lines[0].made, lines[0].made_by, "shuffle", value=True)


def _harm(order: SortedClasses, losses: dict[int, float]) -> str:
    """Return what the order costs, in words; "" if the losses do not show it."""
    runs: list[list[float]] = []
    for step, is_first in order.steps:
        if is_first or not runs:
            runs.append([])
        runs[-1] += [losses[step]] if step in losses else []
    later = runs[len(runs) // 3 : -1]
    long = [each for each in later if len(each) > 1]
    if long:
        begins = mean(max(each[: (len(each) + 1) // 2]) for each in long)
        ends = mean(each[-1] for each in long)
        if begins >= _JUMPS * ends > 0:
            return f"the loss is {begins:.3g} when a class begins, and {ends:.3g} when it ends"
        return ""
    guess = math.log(order.classes)
    short = [loss for each in later for loss in each]
    last = mean(short) if short else 0.0
    if last >= _LEARNS_NOTHING * guess:
        return f"the loss is {last:.3g} in the last steps, that of a guess is {guess:.3g}"
    return ""


RULE = Rule(
    code="CLASSES_IN_TURN",
    name="classes that come one after the other",
    rows=(60,),
    citations=("Deci-AI/super-gradients#416", "BVLC/caffe#1445"),
    needs=frozenset({"classes", "numbers", "passes"}),
    judge=judge,
    harmless=True,
)
