"""A model is called outside of its training in training mode, which disturbs its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.switches import ModeLedger
from halfstep.doctor.signals.program.features import Features
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


_FEWEST = 3  # calls


def judge(evidence: Evidence) -> Finding | None:
    """Find evaluations, or calls of a teacher, that run in training mode."""
    return _disturbed(evidence) or _teacher(evidence)


def _teacher(evidence: Evidence) -> Finding | None:
    """Find a model that others learn from, with fixed parameters, in training mode."""
    for model in evidence.of(Features).models:
        if not (model.layers and model.still and model.taught) or model.count < _FEWEST:
            continue
        layers = ", ".join(model.layers)
        line = model.site.text if model.site else "targets = teacher(images)"
        return Finding(
            summary=f"{model.kind} computes targets or features for the training, with fixed "
            f"parameters, but in training mode: its {layers} give other results in each call, and "
            "running statistics change",
            facts=(f"{counted(model.count, 'call')} whose results the training used",),
            change=("+ teacher.eval()  # before the training", f"  {line}"),
            confidence=LIKELY,
            site=model.site,
        )
    return None


def _disturbed(evidence: Evidence) -> Finding | None:
    """Find evaluations that update running statistics, between training calls.

    A generator that makes samples for the training of a critic is not evaluated.
    """
    trains_others = {model.site for model in evidence.of(Features).models}
    for model in evidence.of(ModeLedger).models:
        owners = evidence.static.models[model.number].optimizers
        if not model.disturbed or not owners or model.disturbed_by in trains_others:
            continue
        calls = max(each.disturbed for each in model.layers)
        dropped = ", and dropout is on" if model.dropouts else ""
        line = model.disturbed_by.text if model.disturbed_by else "outputs = model(images)"
        return Finding(
            summary=f"the loop evaluates {model.kind} in training mode: the norms use the "
            f"statistics of each batch, and put the data of the evaluation into their running "
            f"statistics{dropped}",
            facts=(
                (
                    f"{counted(calls, 'call')} without gradients in training mode, in "
                    f"{counted(model.disturbed, 'evaluation')} before training went on"
                ),
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
    needs=frozenset({"features", "modes", "static"}),
    judge=judge,
    harmless=True,
)
