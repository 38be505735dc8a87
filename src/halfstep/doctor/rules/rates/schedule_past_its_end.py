"""A cosine without restarts moves past its end, and the training ends at a high learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.rates import LearningRates
from halfstep.doctor.remedies import with_length
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_COSINE = "CosineAnnealingLR"
_PAST = 1.5  # times its length: from there on, the rate is above half of the peak
_HIGH = 0.5  # of the largest rate
_FEWEST = 20  # steps


def judge(evidence: Evidence) -> Finding | None:
    """Find a cosine that has fallen and risen again, and whose rates the last steps used."""
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


RULE = Rule(
    code="SCHEDULE_PAST_ITS_END",
    name="a schedule that moves past its end",
    rows=(59,),
    citations=("CodefyUI/CodefyUI#205",),
    needs=frozenset({"rates"}),
    judge=judge,
    harmless=True,
)
