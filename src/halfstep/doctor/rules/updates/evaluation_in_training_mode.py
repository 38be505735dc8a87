"""A model is evaluated in training mode, so that the evaluation changes what it has learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.switches import ModeLedger
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find evaluations that update the running statistics of norms, before training goes on."""
    for model in evidence.of(ModeLedger).models:
        owners = evidence.static.models[model.number].optimizers
        if not model.disturbed or not owners:
            continue
        calls = max(each.disturbed for each in model.layers)
        dropped = ", and dropout is on" if model.dropouts else ""
        line = model.disturbed_by.text if model.disturbed_by else "outputs = model(images)"
        return Finding(
            summary=f"the loop evaluates {model.kind} in training mode: the norms use the "
            f"statistics of each batch, and put the data of the evaluation into their running "
            f"statistics{dropped}",
            facts=(
                f"{counted(calls, 'call')} without gradients in training mode, in "
                f"{counted(model.disturbed, 'evaluation')} before training went on",
                f"norms: {', '.join(model.norms)}",
            ),
            change=(
                "+ model.eval()  # before the evaluation",
                f"  {line}",
                "+ model.train()  # after it",
            ),
            confidence=LIKELY,
            site=model.disturbed_by,
        )
    return None


RULE = Rule(
    code="EVALUATION_IN_TRAINING_MODE",
    name="an evaluation in training mode",
    rows=(58,),
    citations=("princeton-vl/pytorch_stacked_hourglass#44", "nshaud/DeepHyperX#51"),
    needs=frozenset({"modes", "static"}),
    judge=judge,
    harmless=True,
)
