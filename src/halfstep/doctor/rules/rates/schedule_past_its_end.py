"""A schedule without restarts moves past its end, and the training ends at a high learning rate.

A cosine rises again after its length, and so does an even power of the share that is left. A
straight line falls below 0.
"""

from __future__ import annotations

import math
from statistics import mean
from typing import TYPE_CHECKING

from halfstep.doctor.record.rates import LearningRates, Rates
from halfstep.doctor.remedies import with_length
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_COSINE = "CosineAnnealingLR"
_PAST = 1.5  # times its length: from there on, the rate is above half of the peak
_HIGH = 0.5  # of the largest rate
_FEWEST = 20  # steps
_LOW = 0.05  # of the largest rate
_LEAP = 0.34  # of the largest rate; a restart rises at once
_WORSE = 0.05  # of the loss at the lowest rate
_ROUNDING = 1e-3
_WINDOW = 8  # parts of the steps whose losses are compared
_CYCLIC = frozenset({"CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR", _COSINE})


def judge(evidence: Evidence) -> Finding | None:
    """Find a rate that has fallen and risen again, and that the last steps used."""
    return _below_zero(evidence) or _of_a_cosine(evidence) or _of_another(evidence)


def _below_zero(evidence: Evidence) -> Finding | None:
    """Find a rate that falls below 0, as a straight line does after its end."""
    ledger = evidence.of(LearningRates)
    for rates in ledger.optimizers:
        if not rates.valley < -_ROUNDING * rates.largest < 0:
            continue
        schedule = next((each for each in ledger.schedules_of(rates.number) if each.moves), None)
        length = f"all {schedule.moves} moves" if schedule else f"all {rates.steps} steps"
        return Finding(
            summary=f"the learning rate falls below 0, to {rates.valley:.3g} in step "
            f"{rates.valley_at} of {rates.steps}: from 0 on, each step raises the loss",
            facts=(f"the largest rate is {rates.largest:.3g}",),
            change=(f"+ # plan the schedule for {length}, or keep the rate at 0 after its end",),
            site=schedule.made if schedule else rates.written or rates.site,
        )
    return None


def _of_a_cosine(evidence: Evidence) -> Finding | None:
    ledger = evidence.of(LearningRates)
    for place, each in enumerate(ledger.schedules):
        length, rates = each.planned, ledger.of(each.optimizer)
        if each.kind != _COSINE or not length or each.steps < _FEWEST or each.idle:
            continue
        later = (other for other in ledger.schedules[place + 1 :] if other.moves)
        if any(other.optimizer == each.optimizer for other in later):
            continue
        if each.furthest < _PAST * length or rates.last < _HIGH * rates.largest:
            continue
        return Finding(
            summary=f"{_COSINE} has a length of {length} and moved {each.moves} times, so the "
            f"learning rate rose again: training ends at {rates.last:.3g}, and the largest rate "
            f"is {rates.largest:.3g}",
            facts=(f"{each.furthest / length:.3g} times its length",),
            change=with_length(each, each.moves),
            confidence=LIKELY,
            site=each.made,
        )
    return None


def _of_another(evidence: Evidence) -> Finding | None:
    """Find a rate that falls to almost 0 once, and rises gradually.

    Either the loss gets worse meanwhile, or the rate takes the values of its fall again.
    """
    ledger = evidence.of(LearningRates)
    for rates in ledger.optimizers:
        schedules = [each for each in ledger.schedules_of(rates.number) if each.moves]
        if rates.steps < _FEWEST or rates.turns != 1 or len(schedules) > 1:
            continue
        if any(each.mode or each.kind in _CYCLIC for each in schedules):
            continue
        is_turned = rates.valley <= _LOW * rates.largest and rates.last >= _HIGH * rates.largest
        if not is_turned or rates.leap > _LEAP * rates.largest:
            continue
        losses = _losses_at_turn(evidence, rates)
        is_worse = losses is not None and losses[1] - losses[0] > _WORSE * abs(losses[0])
        if not (is_worse or rates.is_mirrored):
            continue
        facts: tuple[str, ...] = (
            "the rate rose through the values of its fall, in the reverse order",
        )
        if losses is not None:
            ends = f"the loss is {losses[0]:.3g} at the lowest rate, {losses[1]:.3g} at the end"
            facts = (*facts[: rates.is_mirrored], ends)
        schedule = schedules[0] if schedules else None
        length = f"{schedule.moves} moves" if schedule else f"{rates.steps} steps"
        return Finding(
            summary=f"the learning rate fell to {rates.valley:.3g} in step {rates.valley_at} of "
            f"{rates.steps} and rose again: training ends at {rates.last:.3g}, and the largest "
            f"rate is {rates.largest:.3g}",
            facts=facts,
            change=(f"+ # plan the schedule for all {length}, or keep the rate after its end",),
            confidence=LIKELY if is_worse else POSSIBLE,
            site=schedule.made if schedule else rates.written or rates.site,
        )
    return None


def _losses_at_turn(evidence: Evidence, rates: Rates) -> tuple[float, float] | None:
    """Return the mean loss after the lowest rate, and that at the end; None if unknown."""
    losses = [
        each.loss
        for each in evidence.numbers.steps
        if each.optimizer == rates.number and each.loss is not None and math.isfinite(each.loss)
    ]
    width = rates.steps // _WINDOW
    if len(losses) != rates.steps or rates.valley_at + 2 * width > len(losses):
        return None
    return mean(losses[rates.valley_at :][:width]), mean(losses[-width:])


RULE = Rule(
    code="SCHEDULE_PAST_ITS_END",
    name="a schedule that moves past its end",
    rows=(59,),
    citations=("CodefyUI/CodefyUI#205",),
    needs=frozenset({"numbers", "rates"}),
    judge=judge,
    harmless=True,
    explains=("LEARNING_RATE_TOO_HIGH",),
)
