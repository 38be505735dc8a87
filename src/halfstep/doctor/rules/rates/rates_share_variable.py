"""A loop makes a function for each parameter group, and all of them use its last variable."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.rates import LearningRates
from halfstep.doctor.record.source import difference
from halfstep.doctor.signals.ledgers.lambdas import Shared, SharedFunctions
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 3  # steps


def judge(evidence: Evidence) -> Finding | None:
    """Find functions for the groups of an optimizer that makes steps."""
    ledger = evidence.of(LearningRates)
    for each in evidence.of(SharedFunctions).found:
        rates = ledger.of(each.optimizer)
        if rates.steps < _FEWEST:
            continue
        names = " and ".join(each.names)
        return Finding(
            summary=f"the {each.count} functions of {each.kind} are meant for different groups, "
            f"but all of them read the variable {names} of the loop that made them, and so "
            "compute with its last value: every group gets the factor of the last one",
            facts=(
                f"the largest rates of the groups are {', '.join(f'{x:.3g}' for x in rates.peaks)}",
                "Python reads a variable when a function is called, not when it is made",
            ),
            change=_change(each),
            confidence=LIKELY,
            site=each.site,
        )
    return None


def _change(shared: Shared) -> tuple[str, ...]:
    """Return the change that keeps the variable's value in a default argument."""
    kept = ", ".join(f"{name}={name}" for name in shared.names)
    new, count = re.subn(
        r"\blambda ([\w, ]*):", lambda found: f"lambda {found[1]}, {kept}:", shared.made_by
    )
    if count == 1:
        return difference(shared.made_by, new)
    return (f"+ # keep the value in a default argument of the function: {kept}",)


RULE = Rule(
    code="RATES_SHARE_VARIABLE",
    name="rates of groups that share a loop's variable",
    rows=(59,),
    citations=("peteryuX/retinaface-tf2#34",),
    needs=frozenset({"lambdas", "rates"}),
    judge=judge,
    harmless=True,
)
