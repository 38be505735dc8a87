"""A function for LambdaLR returns a learning rate, by which LambdaLR multiplies the given one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.record.rates import LearningRates, Rates
from halfstep.doctor.record.source import difference, with_argument
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.record import Evidence, OptimizerFacts

_LAMBDA = "LambdaLR"
_FEWEST = 20  # steps
_MOVES = 3
_SMALL = 0.5  # a rate; a function that returns a larger one may return a factor


def judge(evidence: Evidence) -> Finding | None:
    """Find a largest rate that is the product of two of the rates that the groups were given."""
    ledger = evidence.of(LearningRates)
    for each in ledger.schedules:
        rates = ledger.of(each.optimizer)
        if each.kind != _LAMBDA or each.moves < _MOVES or each.steps < _FEWEST:
            continue
        if len(rates.given) != len(rates.peaks) or rates.loaded:
            continue
        for given, peak in zip(rates.given, rates.peaks, strict=True):
            factor = peak / given if given else math.nan
            if not 0 < factor <= _SMALL or not _is_one_of(factor, rates.given):
                continue
            return Finding(
                summary=f"the largest learning rate in {rates.steps} steps is {peak:.3g}, which "
                f"is {given:g} times {factor:.3g}: {_LAMBDA} multiplies the given rate by the "
                "result of its function, and this function returns a rate, not a factor",
                facts=(f"the optimizer was made with a rate of {given:g}",),
                change=_rate_of_one(evidence.static.optimizers, each.optimizer, rates)
                or (
                    f"+ # let the function of {_LAMBDA} return the rate divided by {factor:g},",
                    "+ # or make the optimizer with lr=1.0",
                ),
                confidence=LIKELY,
                site=each.made,
            )
    return None


def _rate_of_one(
    optimizers: Sequence[OptimizerFacts], number: int, rates: Rates
) -> tuple[str, ...]:
    """Return a change that makes the optimizer with a rate of 1; none if its call is unknown."""
    made, kind = optimizers[number].made_by, optimizers[number].kind
    changed = with_argument(made, kind, "lr", "1.0") if len(rates.given) == 1 else None
    if changed is None or rates.made is None:
        return ()
    return (f"@ {rates.made}", *difference(made, changed))


def _is_one_of(factor: float, given: tuple[float, ...]) -> bool:
    return any(math.isclose(factor, each, rel_tol=1e-6) for each in given)


RULE = Rule(
    code="LEARNING_RATE_SQUARED",
    name="a learning rate that is multiplied by itself",
    rows=(59,),
    citations=("lhoyer/MIC#60", "pytorch/pytorch#78917"),
    needs=frozenset({"rates", "static"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_LOW",),
    harmless=True,
)
