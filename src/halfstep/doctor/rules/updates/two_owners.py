"""A parameter is in two optimizers or twice in one, so its gradient is unscaled or used twice."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from halfstep.doctor.record.contributions import GradientLedger
from halfstep.doctor.signals.ledgers.parameters import ParameterLedger
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 2
_SHARE = 0.5  # of the steps
_APART = (
    "+ # put each parameter into one optimizer:",
    "+ owned = {id(p) for p in first.parameters()}",
    "+ rest = [p for p in second.parameters() if id(p) not in owned]",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find gradients that were divided by the loss scale a second time."""
    events = [*evidence.loop.of("scaler step"), *evidence.loop.of("unscale")]
    for _, event in events:
        number = event.facts["optimizer"]
        assert isinstance(number, int)
        shared = evidence.static.optimizers[number].shared
        if not event.facts["again"] or not shared:
            continue
        count = counted(shared, "parameter")
        others = [
            str(place)
            for place, each in enumerate(evidence.static.optimizers)
            if each.shared and place != number
        ]
        held = (
            f"shares {count} with optimizer {', '.join(others)}"
            if others
            else f"contains {count} more than once"
        )
        return Finding(
            summary=f"optimizer {number} {held}: the scaler divides their gradients by the loss "
            "scale twice, so these parameters hardly learn",
            facts=(
                f"{evidence.loop.share(event, 'optimizer', 'again')}, gradients were divided twice",
            ),
            change=(
                "+ # put each parameter into one optimizer, tied weights only once:",
                "+ owned = {id(p) for p in first.parameters()}",
                "+ rest = [p for p in second.parameters() if id(p) not in owned]",
            ),
            site=event.site,
        )
    return _stepped_twice(evidence) or _cleared_by_another(evidence)


def _stepped_twice(evidence: Evidence) -> Finding | None:
    """Find parameters that two optimizers move by the gradients of the same backward passes."""
    optimizers = evidence.static.optimizers
    for account in evidence.of(GradientLedger).optimizers:
        for other, steps in account.shared.items():
            if steps < max(_OFTEN, _SHARE * account.steps):
                continue
            mine, its = optimizers[account.number], optimizers[other]
            return Finding(
                summary=f"optimizer {account.number} ({mine.kind}) shares "
                f"{counted(mine.shared, 'parameter')} with optimizer {other} ({its.kind}), and "
                "both step with the gradients of the same backward(): these parameters move twice",
                facts=(
                    (
                        f"{steps} of {counted(account.steps, 'step')} used gradients that a step "
                        "of the other optimizer had used for the same parameters"
                    ),
                    *(f"made by {each.made_by}, {each.site}" for each in (its, mine) if each.site),
                ),
                change=_APART,
                confidence=LIKELY,
                site=mine.site or account.step,
            )
    return None


def _cleared_by_another(evidence: Evidence) -> Finding | None:
    """Find parameters that an optimizer never moves, because another one has cleared them."""
    optimizers = evidence.static.optimizers
    stepped: defaultdict[int, set[int]] = defaultdict(set)
    for step in evidence.numbers.steps:
        stepped[step.optimizer].add(step.iteration)
    for part in evidence.of(ParameterLedger).parts:
        mine = optimizers[part.optimizer]
        if part.fate != "never" or not part.count == part.changed == mine.shared:
            continue
        others = [
            number
            for number, each in enumerate(optimizers)
            if number != part.optimizer
            and each.shared >= part.count
            and stepped[number] >= stepped[part.optimizer] != set()
        ]
        for number in others[:1]:
            its = optimizers[number]
            return Finding(
                summary=f"optimizer {part.optimizer} ({mine.kind}) shares "
                f"{counted(part.count, 'parameter')} with optimizer {number} ({its.kind}), whose "
                "step and clearing come first in each iteration: it never has their gradients, "
                "and only the other one moves them",
                facts=(f"such as {', '.join(part.names)}",),
                change=_APART,
                confidence=LIKELY,
                site=mine.site,
            )
    return None


RULE = Rule(
    code="PARAMETER_IN_TWO_OPTIMIZERS",
    name="a parameter in two optimizers",
    rows=(12,),
    citations=("THUDM/slime#1842", "HorizonRobotics/alf#1770"),
    needs=frozenset({"contributions", "loop", "static"}),
    also=frozenset({"numbers", "parameters"}),
    judge=judge,
    explains=("GRADIENTS_CHANGED_WHILE_SCALED",),
)
