"""One new layer is repeated at all places of a container, so these are the same layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.classes import without_repetition
from halfstep.doctor.record.source import difference
from halfstep.doctor.signals.ledgers.parameters import ParameterLedger
from halfstep.doctor.signals.program.repeated import Repetitions
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 3  # steps


def judge(evidence: Evidence) -> Finding | None:
    """Find a trained layer at several places of a container that the program fills with it."""
    if max((each.steps for each in evidence.of(ParameterLedger).owners), default=0) < _FEWEST:
        return None
    for each in evidence.of(Repetitions).layers:
        new = without_repetition(each.made_by)
        where = each.container or "the model"
        return Finding(
            summary=f"the {each.count} layers {each.layer} of {where} in {each.model} are one "
            f"layer, and share one set of {each.parameters} weights: {_why(each.made_by)}",
            facts=(f"the layer is trained, and stands at {each.count} places",),
            change=difference(each.made_by, new)
            if new
            else (f"+ # call {each.layer}(...) anew for each place, in a loop or a comprehension",),
            confidence=LIKELY,
            site=each.site,
            module=each.container,
        )
    return None


def _why(made_by: str) -> str:
    if "fromkeys" in made_by:
        return "fromkeys() gives the same object to all keys"
    if "repeat(" in made_by:
        return "repeat() yields the same object each time"
    return "multiplying a list repeats the same object"


RULE = Rule(
    code="LAYERS_SHARE_WEIGHTS",
    name="layers of a list that are one layer",
    rows=(11,),
    citations=("zalandoresearch/pytorch-vq-vae#2", "yaoppeng/U-Net_v2#10"),
    needs=frozenset({"parameters", "repetitions"}),
    judge=judge,
    harmless=True,
)
