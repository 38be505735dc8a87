"""The eps of an adaptive optimizer is far above its gradients, so its updates almost vanish."""

from __future__ import annotations

from math import isfinite
from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.remedies import with_eps
from halfstep.doctor.signals.ledgers.parameters import ParameterLedger
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 8  # steps
_ABOVE = 30.0  # times the largest gradient
_SMALL = 1e-5  # change of a parameter in a step, relative to its size
_ABOVE_IF_FLAT = 3.0  # times, if the loss does not fall
_SMALL_IF_FLAT = 3e-4
_FALLS = 0.97  # of the first losses


def judge(evidence: Evidence) -> Finding | None:
    """Find an optimizer whose eps is above every gradient, and whose parameters hardly move."""
    for owner in evidence.of(ParameterLedger).owners:
        course = evidence.numbers.course(owner.number)
        is_flat = course is not None and course[1] >= _FALLS * course[0] > 0
        above, small = (_ABOVE_IF_FLAT, _SMALL_IF_FLAT) if is_flat else (_ABOVE, _SMALL)
        is_small = isfinite(owner.largest) and 0 < above * owner.largest <= owner.eps
        if owner.steps < _FEWEST or not is_small:
            continue
        moves = [
            each.relative_update for each in evidence.samples if each.optimizer == owner.number
        ]
        if not moves or median(moves) > small:
            continue
        optimizer = evidence.static.optimizers[owner.number]
        facts = [f"in a step, a parameter changes by {median(moves):.2g} of its size"]
        if course is not None and is_flat:
            facts.append(f"the loss is {course[0]:.3g} at first, {course[1]:.3g} at the end")
        return Finding(
            summary=f"the eps of {optimizer.kind} is {owner.eps:g}, and its largest gradient "
            f"{owner.largest:.3g}: an update is divided by eps in place of the size of the "
            "gradients, so it almost vanishes",
            facts=tuple(facts),
            change=(
                *with_eps(optimizer, f"{min(1e-8, owner.largest * 1e-3):.0e}"),
                "+ # or a larger loss, if something divides it: its gradients are that small",
            ),
            confidence=LIKELY,
            site=optimizer.site,
        )
    return None


RULE = Rule(
    code="EPS_ABOVE_GRADIENTS",
    name="an eps of the optimizer above its gradients",
    rows=(27,),
    citations=("ibab/tensorflow-wavenet#149", "NVIDIA-NeMo/Emerging-Optimizers#189"),
    needs=frozenset({"numbers", "parameters", "samples", "static"}),
    judge=judge,
    explains=("UPDATES_ROUNDED_AWAY",),
    harmless=True,
)
