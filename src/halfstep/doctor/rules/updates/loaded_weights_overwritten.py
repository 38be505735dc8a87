"""Loaded weights are initialised again before the model uses them, so the load has no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.program.overwritten import OverwrittenLoads
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a model of whose loaded weights none is left when it first runs."""
    for each in evidence.of(OverwrittenLoads).found:
        weights = counted(each.weights, "loaded weight")
        load = each.load.text if each.load else "model.load_state_dict(state)"
        return Finding(
            summary=f"an initialisation overwrites all {weights} of {each.module} before its "
            "first call, so the training begins with random weights and not with those of the load",
            facts=(f"loaded before: {load}",),
            change=(
                "+ # initialise before the load, and afterwards only the layers that it lacks:",
                f"  {load}",
            ),
            confidence=LIKELY,
            site=each.site,
        )
    return None


RULE = Rule(
    code="LOADED_WEIGHTS_OVERWRITTEN",
    name="loaded weights that are initialised again",
    rows=(11,),
    citations=("huggingface/picotron#32", "huggingface/transformers#46620"),
    needs=frozenset({"overwritten loads"}),
    judge=judge,
    harmless=True,
)
