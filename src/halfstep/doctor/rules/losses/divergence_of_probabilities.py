"""A divergence that needs logarithms of probabilities gets the probabilities, or the opposite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.values.divergences import (
    LOGARITHMS,
    NEITHER,
    PROBABILITIES,
    Divergence,
    Divergences,
)
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a divergence whose input is no logarithm, or whose target is not what it expects."""
    return next(filter(None, map(_judged, evidence.of(Divergences).calls)), None)


def _judged(call: Divergence) -> Finding | None:
    given, change, confidence = "", "", LIKELY
    if call.inputs == PROBABILITIES:
        given = "its first argument are probabilities, and it needs their logarithms"
        change = "+ # the logarithm of the first argument: its .log(), or log_softmax for softmax"
    elif call.inputs == NEITHER and call.targets == PROBABILITIES:
        given = "its first argument has positive numbers, and it needs logarithms of probabilities"
        change = "+ # torch.log_softmax(..., dim) of the first argument, if these are logits"
        confidence = POSSIBLE
    elif call.targets == LOGARITHMS and not call.log_target:
        given = "its targets are logarithms, and it needs probabilities"
        change = "+ # with log_target=True"
    elif call.targets == PROBABILITIES and call.log_target:
        given = "log_target=True says that its targets are logarithms, but they are probabilities"
        change = "+ # without log_target=True"
    if not given:
        return None
    return Finding(
        summary=f"{call.name} is no divergence here: {given}; its minimum is not where both "
        "distributions are equal",
        facts=(
            f"first argument: {call.inputs or 'mixed'}; targets: {call.targets or 'mixed'}",
            counted(call.count, "call"),
        ),
        change=(*((f"  {call.site.text}",) if call.site else ()), change),
        confidence=confidence,
        site=call.site,
    )


RULE = Rule(
    code="DIVERGENCE_OF_PROBABILITIES",
    name="a divergence of probabilities that needs logarithms",
    rows=(35,),
    citations=("sebastian-hofstaetter/matchmaker#18", "lightly-ai/lightly#1341"),
    needs=frozenset({"divergences"}),
    judge=judge,
    explains=("NOT_FINITE", "OUTSIDE_DOMAIN", "LOG_OF_ZERO"),
)
