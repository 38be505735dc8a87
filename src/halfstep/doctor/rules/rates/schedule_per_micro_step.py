"""A scheduler moves with each micro-step of an accumulation, and was planned for steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.rates import LearningRates, Rates, Schedule
from halfstep.doctor.remedies import moved, with_length
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 8
_OFTEN = 1.75  # moves per step
_SLACK = 0.25  # of the steps


def judge(evidence: Evidence) -> Finding | None:
    """Find a scheduler with several moves per step, whose plan ends with the steps."""
    ledger = evidence.of(LearningRates)
    for each in ledger.schedules:
        if each.steps < _FEWEST or each.moves < _OFTEN * each.steps:
            continue
        if not (_fits(each) or _ends_at_zero(each, ledger.of(each.optimizer))):
            continue
        line = each.site.text if each.site else "scheduler.step()"
        length = "" if each.planned is None else f", and its length is {each.planned}"
        return Finding(
            summary=f"{each.kind} moved {each.moves} times in {each.steps} steps of its "
            f"optimizer{length}: it moves with each micro-step, so the schedule ends early",
            facts=(f"{each.moves / each.steps:.3g} moves per step",),
            change=moved(each.site, ledger.of(each.optimizer).site)
            or (
                f"- {line}",
                "+ if is_last_micro_step:  # where optimizer.step() is called",
                f"+     {line}",
            ),
            otherwise=(with_length(each, each.moves),),
            confidence=LIKELY,
            site=each.site,
        )
    return None


def _fits(schedule: Schedule) -> bool:
    planned = schedule.planned
    return planned is not None and abs(planned - schedule.steps) <= _SLACK * schedule.steps


def _ends_at_zero(schedule: Schedule, rates: Rates) -> bool:
    """Return whether the rate became 0 when the schedule had moved as often as there are steps."""
    if schedule.planned is not None or rates.zeros < 2 or rates.moving_to > rates.zero_from:
        return False
    moved = (rates.steps - rates.zeros) * schedule.moves / schedule.steps
    return abs(moved - schedule.steps) <= _SLACK * schedule.steps


RULE = Rule(
    code="SCHEDULE_PER_MICRO_STEP",
    name="a scheduler that moves with each micro-step",
    rows=(59,),
    citations=("huggingface/accelerate#963", "h2oai/h2o-llmstudio#663"),
    needs=frozenset({"rates"}),
    judge=judge,
    explains=(
        "LEARNING_RATE_ZERO",
        "LEARNING_RATE_FALLS_EARLY",
        "SCHEDULE_PAST_ITS_END",
        "LEARNING_RATE_TOO_LOW",
    ),
    harmless=True,
)
