"""A scheduler moves with each micro-step of an accumulation, and was planned for steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.rates import LOW, LearningRates, Rates, Schedule
from halfstep.doctor.remedies import moved, with_length
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 8
_OFTEN = 1.75  # moves per step
_SLACK = 0.25  # of the steps
_EARLY = 0.75  # of the steps
_MODERATE = 10.0  # times the share of the peak below which a rate is almost 0
_LEARNED = 0.5  # of the loss at the beginning


def judge(evidence: Evidence) -> Finding | None:
    """Find a scheduler with several moves per step, whose plan ends with the steps."""
    ledger = evidence.of(LearningRates)
    for each in ledger.schedules:
        if each.steps < _FEWEST or each.moves < _OFTEN * each.steps:
            continue
        rates = ledger.of(each.optimizer)
        if not (_fits(each) or _ends_at_zero(each, rates) or _collapses(evidence, each, rates)):
            continue
        line = each.site.text if each.site else "scheduler.step()"
        length = "" if each.length is None else f", and its length is {each.length}"
        return Finding(
            summary=f"{each.kind} moved {each.moves} times in {each.steps} steps of its "
            f"optimizer{length}: it moves with each micro-step, so the schedule ends early",
            facts=(f"{each.moves / each.steps:.3g} moves per step",),
            change=moved(each.site, rates.site)
            or (
                f"- {line}",
                "+ if is_last_micro_step:  # where optimizer.step() is called",
                f"+     {line}",
            ),
            otherwise=() if each.length is None else (with_length(each, each.moves),),
            confidence=LIKELY,
            site=each.site,
        )
    return None


def _fits(schedule: Schedule) -> bool:
    length = schedule.length
    return length is not None and abs(length - schedule.steps) <= _SLACK * schedule.steps


def _ends_at_zero(schedule: Schedule, rates: Rates) -> bool:
    """Return whether the rate became 0 when the schedule had moved as often as there are steps."""
    if schedule.planned is not None or rates.zeros < 2 or rates.moving_to > rates.zero_from:
        return False
    moved = (rates.steps - rates.zeros) * schedule.moves / schedule.steps
    return abs(moved - schedule.steps) <= _SLACK * schedule.steps


def _collapses(evidence: Evidence, schedule: Schedule, rates: Rates) -> bool:
    """Return whether moves with each backward pass end the training that moves per step would not.

    The rate of a schedule without a length becomes almost 0 in the middle of the run. With one move
    per step, it would have fallen by a root of that.
    """
    if schedule.planned is not None or schedule.mode or rates.low_from < 0:
        return False
    often = schedule.moves / schedule.steps
    is_micro = abs(schedule.moves - schedule.backwards) <= often
    left = rates.last / rates.peaks[0]
    if not is_micro or left <= 0 or left ** (1 / often) < _MODERATE * LOW:
        return False
    course = evidence.numbers.course(schedule.optimizer)
    is_early = rates.low_from <= _EARLY * rates.steps
    return is_early and course is not None and course[1] > _LEARNED * course[0] > 0


RULE = Rule(
    code="SCHEDULE_PER_MICRO_STEP",
    name="a scheduler that moves with each micro-step",
    rows=(59,),
    citations=("huggingface/accelerate#963", "h2oai/h2o-llmstudio#663"),
    needs=frozenset({"numbers", "rates"}),
    judge=judge,
    explains=(
        "LEARNING_RATE_ZERO",
        "LEARNING_RATE_FALLS_EARLY",
        "SCHEDULE_PAST_ITS_END",
        "LEARNING_RATE_TOO_LOW",
    ),
    harmless=True,
)
