"""The parameter groups were given different learning rates, and all steps use one for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.rates import LearningRates, Rates, Schedule
from halfstep.doctor.record.source import difference, with_argument
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 10  # steps
_APART = 1.5  # times; from there on, the author meant the difference
_SHARE = 0.9  # of the steps; a schedule may begin or end at one rate for all groups, 0


_PEAKS = "OneCycleLR"  # takes the largest rate of each group


def judge(evidence: Evidence) -> Finding | None:
    """Find groups whose own rates no step used, as other code wrote the same rate into each."""
    ledger = evidence.of(LearningRates)
    for rates in ledger.optimizers:
        if rates.steps < _FEWEST or rates.equal < _SHARE * rates.steps:
            continue
        if not _are_apart(rates) or rates.loaded:
            continue
        schedule = next((each for each in ledger.schedules_of(rates.number) if each.moves), None)
        by = schedule.kind if schedule else "the loop"
        return Finding(
            summary=f"the parameter groups were given learning rates from {min(rates.given):g} to "
            f"{max(rates.given):g}, but {by} gives all of them the same rate: "
            f"{max(rates.peaks):.3g} at most",
            facts=(f"one rate for all groups in {rates.equal} of {rates.steps} steps",),
            change=_change(rates, schedule),
            confidence=LIKELY,
            site=schedule.made if schedule else rates.written or rates.site,
        )
    return None


def _are_apart(rates: Rates) -> bool:
    """Return whether groups were given different rates; one of 0 may wait for another phase."""
    known = [each for each in rates.given if each > 0]
    return len(known) == len(rates.given) > 1 and max(known) >= _APART * min(known)


def _change(rates: Rates, schedule: Schedule | None) -> tuple[str, ...]:
    given = ", ".join(f"{each:g}" for each in rates.given)
    if schedule is not None:
        made = schedule.made_by
        new = with_argument(made, schedule.kind, "max_lr", f"[{given}]", position=1)
        if new is not None and schedule.kind == _PEAKS and schedule.made is not None:
            return (f"@ {schedule.made}", *difference(made, new))
        return (f"+ # give {schedule.kind} a list of rates, one for each group: {given}",)
    words = f"+ # multiply each group's own rate by the factor of the schedule: {given}"
    return (f"- {rates.written.text}", words) if rates.written else (words,)


RULE = Rule(
    code="GROUP_RATES_OVERWRITTEN",
    name="learning rates of groups that are overwritten",
    rows=(59,),
    citations=("katsura-jp/pytorch-cosine-annealing-with-warmup#14", "deepspeedai/DeepSpeed#8171"),
    needs=frozenset({"rates"}),
    judge=judge,
    harmless=True,
)
