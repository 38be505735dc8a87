"""Loaded weights are lost before a model uses them, so the load has no effect.

They are initialised again; or another model than the one that was loaded is trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.program.dropped import DroppedLoads
from halfstep.doctor.signals.program.overwritten import OverwrittenLoads
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a model that runs without the weights that were loaded for it."""
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
    for dropped in evidence.of(DroppedLoads).found:
        load = dropped.site.text if dropped.site else "model.load_state_dict(state)"
        return Finding(
            summary=f"nothing uses the {dropped.module} that gets the weights of a file: another "
            f"{dropped.module} is trained, and it begins with random weights",
            facts=(f"{counted(dropped.weights, 'parameter')} of it were loaded, and never read",),
            change=("+ # load the state into the model that is trained:", f"  {load}"),
            confidence=LIKELY,
            site=dropped.site,
        )
    return None


RULE = Rule(
    code="LOADED_WEIGHTS_OVERWRITTEN",
    name="loaded weights that no model uses",
    rows=(11,),
    citations=(
        "huggingface/picotron#32",
        "huggingface/transformers#46620",
        "stanford-futuredata/ColBERT#43",
    ),
    needs=frozenset({"dropped loads", "overwritten loads"}),
    judge=judge,
    harmless=True,
)
