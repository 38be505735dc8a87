"""Norms are evaluated with running statistics that their momentum has hardly moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.values.initial_statistics import InitialStatistics
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 30  # batches: fewer are a short test of a program
_SHARE = 0.3


def judge(evidence: Evidence) -> Finding | None:
    """Find norms whose statistics still consist of the values of their construction."""
    for each in evidence.of(InitialStatistics).norms:
        if each.batches < _FEWEST or each.left < _SHARE:
            continue
        return Finding(
            summary=f"after {each.batches} batches with momentum={each.momentum:g}, "
            f"{each.left:.0%} of the running statistics of {each.kind} are still the mean 0 and "
            "the variance 1 of their construction, and an evaluation uses them",
            facts=(
                f"{counted(each.count, 'norm')} with this momentum",
                "in PyTorch, the momentum is the weight of the new batch; the default is 0.1",
            ),
            change=(
                "+ # a larger momentum for a training of this length, for example the default 0.1,",
                "+ # or momentum=None, which averages over all batches",
            ),
            confidence=LIKELY,
            site=each.site,
        )
    return None


RULE = Rule(
    code="NORM_STATISTICS_INITIAL",
    name="norms with the running statistics of their construction",
    rows=(58,),
    citations=(
        "vacancy/Synchronized-BatchNorm-PyTorch#5",
        "Cadene/pretrained-models.pytorch#5",
    ),
    needs=frozenset({"initial_statistics"}),
    judge=judge,
    harmless=True,
)
