"""Steps are made at a learning rate of 0, so they change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.rates import LearningRates, Rates
from halfstep.doctor.signals.ledgers.parameters import ParameterLedger
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 10
_SHARE = 0.25  # of the steps; a few steps at 0 begin a warm-up or end a schedule
_GATE = 0.5  # of the largest rate; a schedule from there to 0 switches the optimizer off on purpose

_BY_FACTOR = frozenset({"ExponentialLR", "MultiStepLR", "StepLR"})
"""Schedules that multiply a rate by a factor, which is not meant to be 0."""


def judge(evidence: Evidence) -> Finding | None:
    """Find steps at a rate of 0, while no other optimizer moves anything."""
    return _of_all(evidence) or _of_a_part(evidence)


def _of_a_part(evidence: Evidence) -> Finding | None:
    """Find a group at a rate of 0 in all its steps, that was given another rate."""
    for part in evidence.of(ParameterLedger).parts:
        if part.why != "lost rate":
            continue
        site = evidence.of(LearningRates).of(part.optimizer).site
        return Finding(
            summary=f"the learning rate of {counted(part.count, 'parameter')} is 0 in all steps, "
            "although the optimizer got them with another one: they do not change",
            facts=(f"unchanged: {', '.join(part.names[:3])}",),
            change=(
                "+ # what sets the rates of the groups gives 0 for this one, for example from the",
                "+ # present rate of another group; print each group['lr'] after it",
            ),
            confidence=LIKELY,
            site=site,
        )
    return None


def _of_all(evidence: Evidence) -> Finding | None:
    """Find an optimizer whose groups are all at a rate of 0."""
    ledger = evidence.of(LearningRates)
    for rates in ledger.optimizers:
        if rates.zeros < max(_FEWEST, _SHARE * rates.steps) or not rates.largest:
            continue
        late = rates.moving_to < rates.zero_from
        mine = [each for each in ledger.schedules if each.optimizer == rates.number]
        by_factor = any(each.kind in _BY_FACTOR for each in mine)
        if late and rates.last_moving > _GATE * rates.largest and not by_factor:
            continue
        if any(_moves_meanwhile(other, rates) for other in ledger.optimizers):
            continue
        at = next((each.made for each in mine if each.made), None)
        when = f"from step {rates.zero_from} on" if late else f"first in step {rates.zero_from}"
        return Finding(
            summary=f"{rates.zeros} of {rates.steps} steps are made at a learning rate of 0, "
            f"{when}, so they change nothing: "
            + (
                "the schedule is shorter than the training"
                if late and rates.moving_to >= 0
                else "the schedule gives 0 in these steps"
            ),
            facts=(
                f"the largest rate is {rates.largest:.3g}",
                *(f"{each.kind} moved {each.moves} times" for each in mine),
            ),
            change=(
                *((f"  {at.text}",) if at else ()),
                f"+ # with its length in the unit of its moves: {rates.steps} steps, or the epochs",
            ),
            confidence=LIKELY,
            site=at or rates.site,
        )
    return None


def _moves_meanwhile(other: Rates, rates: Rates) -> bool:
    return (
        other.number != rates.number
        and other.moving_from >= 0
        and other.moving_from <= rates.zero_to
        and other.moving_to >= rates.zero_from
    )


RULE = Rule(
    code="LEARNING_RATE_ZERO",
    name="steps at a learning rate of 0",
    rows=(59,),
    citations=("huggingface/transformers#671",),
    needs=frozenset({"parameters", "rates"}),
    judge=judge,
    explains=("LEARNING_RATE_FALLS_EARLY", "LEARNING_RATE_TOO_LOW"),
    harmless=True,
)
