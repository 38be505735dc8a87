"""An optimizer steps on parameters that have no gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.order import raised
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Loop, OptimizerFacts

_CHANGE = (
    "+ # create the optimizer after the last change to the model, from trainable parameters:",
    "+ optimizer = Optimizer([p for p in model.parameters() if p.requires_grad])",
    "+ # in a step without a loss, also skip scaler.step() and scaler.update()",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find a refused step, an optimizer without gradients, or an optimizer of an older model."""
    refused = raised(evidence.loop, "No inf checks were recorded for this optimizer")
    if refused is not None:
        shape, event = refused
        return Finding(
            summary="scaler.step() was called for an optimizer without gradients: its parameters "
            "are frozen, are unused in the loss, or do not belong to the model",
            facts=(
                str(event.facts["error"]),
                *(
                    f"optimizer {number}: {_missing(each)}"
                    for number, each in enumerate(evidence.static.optimizers)
                    if each.without_gradient
                ),
                f"this first happened in step {shape.first}",
            ),
            change=_CHANGE,
            site=event.site,
        )
    for number, optimizer in enumerate(evidence.static.optimizers):
        owned = sum(optimizer.formats.values())
        if optimizer.without_gradient == owned and _never_had(evidence.loop, number):
            return _silent(evidence, number, _missing(optimizer))
        forgotten = [name for model in evidence.static.models for name in model.forgotten]
        if optimizer.steps and optimizer.stale and forgotten:
            missed = f"{', '.join(forgotten[:3])} get gradients, but belong to no optimizer"
            return _silent(evidence, number, f"{_missing(optimizer)}; {missed}")
    return None


def _never_had(loop: Loop, number: int) -> bool:
    """Return whether an optimizer stepped, but never had gradients."""
    steps = [event for _, event in loop.of("step") if event.facts["optimizer"] == number]
    return bool(steps) and all(each.facts["gradients"] == "none" for each in steps)


def _missing(optimizer: OptimizerFacts) -> str:
    owned = sum(optimizer.formats.values())
    share = f"{optimizer.without_gradient} of {counted(owned, 'parameter')}"
    text = f"{share} of {optimizer.kind} never had a gradient"
    if optimizer.foreign:
        text += f"; {optimizer.foreign} belong to no model that was called"
    return text


def _silent(evidence: Evidence, number: int, fact: str) -> Finding:
    steps = [event for _, event in evidence.loop.of("step") if event.facts["optimizer"] == number]
    return Finding(
        summary="the optimizer steps on parameters that never get a gradient: the loss "
        "depends on other parameters",
        facts=(fact,),
        change=_CHANGE,
        confidence=LIKELY,
        site=steps[0].site if steps else None,
    )


RULE = Rule(
    code="NO_GRADIENTS",
    name="an optimizer without gradients",
    rows=(11,),
    citations=("nerfstudio-project/nerfstudio#1919", "ecmwf/WeatherGenerator#356"),
    needs=frozenset({"loop", "static"}),
    judge=judge,
)
