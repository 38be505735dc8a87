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
_FALLS = 1.05  # times the loss at the end of a class, from that of its first half
_AS_A_GUESS = 1.0  # times its loss
_PURE = 0.95  # of a step's targets; below, the data are shuffled a little


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
            is_pure = each.pure >= _PURE
            return Finding(
                summary=f"{'each step has' if is_pure else 'most steps have'} targets of one "
                f"class: two targets of a step are the same in {each.pure:.0%} of the cases, any "
                f"two targets in {each.chance:.0%}. The data are ordered by class and are "
                f"{'not shuffled' if is_pure else 'shuffled too little, or not at all'}",
                facts=(
                    harm,
                    f"the {each.classes} classes come in the same order in each epoch"
                    if each.same_order
                    else f"a class lasts {each.length:.3g} steps on average, and comes again later",
                ),
                change=_shuffled(evidence)
                or (
                    (
                        "+ # shuffle: DataLoader(..., shuffle=True), or index with "
                        "torch.randperm(...) in each epoch; a stream's buffer must be larger than "
                        "a class"
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
    every = [loss for each in later for loss in each]
    last, guess = mean(every) if every else 0.0, math.log(order.classes)
    long = [each for each in later if len(each) > 1]
    falls = True
    if long:
        halves = [each[: (len(each) + 1) // 2] for each in long]
        begins, ends = mean(map(max, halves)), mean(each[-1] for each in long)
        if begins >= _JUMPS * ends > 0:
            return f"the loss is {begins:.3g} when a class begins, and {ends:.3g} when it ends"
        falls = mean(map(mean, halves)) >= _FALLS * ends > 0
    # Each step unlearns what others have learned, if no class lasts or if the loss falls within it.
    if falls and last >= (_AS_A_GUESS if long else _LEARNS_NOTHING) * guess:
        return f"the loss is {last:.3g} in the last steps, that of a guess is {guess:.3g}"
    return ""


RULE = Rule(
    code="CLASSES_IN_TURN",
    name="classes that come one after the other",
    rows=(60,),
    citations=("Deci-AI/super-gradients#416", "BVLC/caffe#1445"),
    needs=frozenset({"classes", "numbers", "passes"}),
    judge=judge,
    explains=("GRADIENTS_VANISH", "INPUT_LOST"),
    harmless=True,
)
