"""A loaded optimizer state brings another learning rate, and nothing sets the given one again."""

from __future__ import annotations

import re
from statistics import mean
from typing import TYPE_CHECKING

from halfstep.doctor.record.rates import LearningRates, Rates
from halfstep.doctor.record.source import argument
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, OptimizerFacts

_FEWEST = 20  # steps
_APART = 2.0  # times
_JUMP = 2.0  # times a loss
_LOSSES = 5


def judge(evidence: Evidence) -> Finding | None:
    """Find steps at the loaded rate alone, without a scheduler that would go on from it."""
    ledger = evidence.of(LearningRates)
    for rates in ledger.optimizers:
        phase = _begins_a_phase(rates, ledger, evidence)
        steps = rates.since if phase else rates.held
        if steps < _FEWEST or rates.is_default or not rates.given or rates.rate <= 0:
            continue
        if any(ledger.schedules_of(rates.number)):
            continue
        given = rates.given[0]
        # A loop that lowers the rate by hand may go on at a lower one. One that has a scheduler
        # goes on with the scheduler.
        is_lower = (rates.resumed or phase) and given >= _APART * rates.rate
        if not is_lower and rates.rate < _APART * given:
            continue
        line = rates.loaded.text if rates.loaded else "optimizer.load_state_dict(state)"
        return Finding(
            summary=f"the optimizer was made with a learning rate of {given:g}, but "
            f"load_state_dict replaced it by {rates.rate:.3g}, and all {steps} steps since "
            f"then use {'rates up to the loaded one' if phase else 'the loaded rate'}",
            facts=(
                "another optimizer of the program had the loaded rate at its end"
                if phase
                else "a scheduler had moved the loaded rate"
                if rates.resumed
                else "it is larger",
                "the program has no scheduler for this optimizer",
            ),
            change=(
                f"  {line}",
                *_given_again(evidence.static.optimizers[rates.number], rates, line),
            ),
            confidence=LIKELY,
            site=rates.loaded,
        )
    return None


def _given_again(optimizer: OptimizerFacts, rates: Rates, line: str) -> tuple[str, ...]:
    """Return lines that set the rates that the groups were given."""
    found = re.match(r"([\w.]+)\.load_state_dict\(", line)
    groups = f"{found[1] if found else 'optimizer'}.param_groups"
    if len({*rates.given}) > 1:
        given = ", ".join(f"{each:g}" for each in rates.given)
        return (f'+ for group, lr in zip({groups}, ({given})): group["lr"] = lr',)
    is_here = rates.made and rates.loaded and rates.made.function == rates.loaded.function
    source = argument(optimizer.made_by, optimizer.kind, 0, "lr") if is_here else ""
    return (f'+ for group in {groups}: group["lr"] = {source or format(rates.given[0], "g")}',)


def _begins_a_phase(rates: Rates, ledger: LearningRates, evidence: Evidence) -> bool:
    """Return whether a state comes from an optimizer of the program, and another phase begins.

    A run that is resumed makes its optimizer with the rate of before, and its loss goes on where it
    was.
    """
    return not rates.above and any(
        each.changes
        and each.moving_to < rates.moving_from
        and each.given
        and (each.given[0] not in rates.given or _is_another_task(evidence, each, rates))
        and rates.rate <= each.last <= _APART * rates.rate
        for each in ledger.optimizers
    )


def _is_another_task(evidence: Evidence, before: Rates, after: Rates) -> bool:
    """Return whether the loss of an optimizer begins high above that of another one, and stays."""
    old, new = (
        [
            each.loss
            for each in evidence.numbers.steps
            if each.optimizer == one.number and each.loss is not None
        ]
        for one in (before, after)
    )
    if min(len(old), len(new)) < 2 * _LOSSES:
        return False
    end, start = mean(old[-_LOSSES:]), mean(new[:_LOSSES])
    return start > _JUMP * abs(end) and mean(new[-_LOSSES:]) > start / _JUMP


RULE = Rule(
    code="LOADED_RATE_KEPT",
    name="a loaded learning rate in place of the given one",
    rows=(59,),
    citations=("pytorch/examples#816", "facebookresearch/detr#301"),
    needs=frozenset({"numbers", "rates", "static"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_LOW",),
    harmless=True,
)
