"""Norms are evaluated with running statistics that the training has hardly moved, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.values.initial_statistics import InitialStatistic, InitialStatistics
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 30  # batches: fewer are a short test of a program
_SHARE = 0.3


def judge(evidence: Evidence) -> Finding | None:
    """Find norms whose statistics still consist of the values of their construction."""
    for each in evidence.of(InitialStatistics).norms:
        if not each.batches and each.trained >= _FEWEST:
            return _thrown_away(each)
        if each.elsewhere >= _FEWEST:
            return _left_behind(each)
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


def _thrown_away(norm: InitialStatistic) -> Finding:
    return Finding(
        summary=f"after {norm.trained} training calls in training mode, an evaluation uses the "
        f"running statistics with which {norm.kind} was made, the mean 0 and the variance 1: those "
        "of the training are in other tensors",
        facts=(
            f"{counted(norm.count, 'norm')} whose statistics have seen no batch",
            "a copy of the buffers is updated in its place, for example by functional_call()",
        ),
        change=(
            "+ # evaluate with the buffers that the training calls have updated",
            *((f"  {norm.site.text}",) if norm.site else ()),
        ),
        confidence=LIKELY,
        site=norm.site,
    )


def _left_behind(norm: InitialStatistic) -> Finding:
    return Finding(
        summary="a copy of the trained model is evaluated that has its weights, but not its "
        f"running statistics: those of {norm.kind} are the mean 0 and the variance 1 of their "
        "construction",
        facts=(
            f"{counted(norm.count, 'norm')} of the copy, which was never trained itself",
            f"another model with the same parameters has {norm.elsewhere} training calls",
        ),
        change=(
            "+ # copy the whole state_dict(), which contains the buffers, too: parameters() and",
            "+ # named_parameters() do not",
            *((f"  {norm.site.text}",) if norm.site else ()),
        ),
        confidence=LIKELY,
        site=norm.site,
    )


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
