"""A loop makes a scheduler, and never moves it, or moves that of another optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.rates import LearningRates, Schedule
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 20  # steps; a shorter program may be a test of the loop
_SLACK = 2  # of a length in steps, as programs count the ends differently


def judge(evidence: Evidence) -> Finding | None:
    """Find a scheduler that never moved, although its plan was for the steps of this program."""
    ledger = evidence.of(LearningRates)
    for each in ledger.schedules:
        rates = ledger.of(each.optimizer)
        others = [other for other in ledger.schedules if other.optimizer == each.optimizer]
        if each.moves and not each.steps and not rates.steps:
            owner = next((o for o in ledger.optimizers if o.steps >= _FEWEST), None)
            if owner is not None and not owner.changes and each.moves >= owner.steps / 2:
                return _finding(
                    each, "the loop moves it, but its optimizer makes no step", owner.steps
                )
        if each.moves or each.restored or rates.changes or each.steps < _FEWEST:
            continue
        if any(other.moves for other in others):
            continue  # a scheduler that another one contains or replaces
        if each.below:
            return _finding(each, "the rate stays at the start of a warm-up", each.steps)
        if each.planned is not None and abs(each.planned - each.steps) <= _SLACK:
            why = f"its length is {each.planned} moves, one for each step"
            return _finding(each, why, each.steps)
    return None


def _finding(schedule: Schedule, why: str, steps: int) -> Finding:
    name = "scheduler"
    return Finding(
        summary=f"{schedule.kind} does not move the learning rate in {steps} steps: {why}",
        facts=(f"the rate was the same in each of {steps} steps",),
        change=(
            "  optimizer.step()",
            f"+ {name}.step()  # of the optimizer that makes the steps",
        ),
        confidence=LIKELY,
        site=schedule.made,
    )


RULE = Rule(
    code="SCHEDULE_NEVER_MOVES",
    name="a scheduler that never moves the learning rate",
    rows=(59,),
    citations=("thu-ml/tianshou#774",),
    needs=frozenset({"rates"}),
    judge=judge,
    harmless=True,
)
