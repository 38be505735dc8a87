"""A step uses the gradients of earlier steps, because nothing clears them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.order import optimizer_name
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 2  # a single case may be intended, at the start or end of training


def judge(evidence: Evidence) -> Finding | None:
    """Find steps whose gradients include the gradients of an earlier step."""
    loop = evidence.loop
    for kind in ("scaler step", "step"):
        stale = [(shape, event) for shape, event in loop.of(kind) if event.facts.get("stale")]
        if sum(shape.count for shape, _ in stale) < _OFTEN:
            continue
        event = stale[0][1]
        cleared = loop.count("zero", optimizer=event.facts["optimizer"])
        scaled = kind == "scaler step"
        name = optimizer_name(loop, event.facts["optimizer"])
        return Finding(
            summary="gradients are not cleared before the next backward(): each step applies "
            "its own gradients plus those of earlier steps"
            + (
                "; the scaler divides the earlier gradients by the loss scale again"
                if scaled
                else ""
            ),
            facts=(
                f"{loop.share(event, 'stale')}, backward() added to gradients of an earlier step",
                f"gradients were cleared {counted(cleared, 'time')} in "
                f"{counted(loop.iterations, 'step')}"
                if cleared
                else "gradients were never cleared",
            ),
            change=(
                f"  {event.site.text}" if event.site else "  optimizer.step()",
                f"+ {name}.zero_grad()  # after each step, or before its first backward()",
            ),
            confidence=CERTAIN if scaled else LIKELY,
            site=event.site,
        )
    return None


RULE = Rule(
    code="GRADIENTS_NOT_CLEARED",
    name="gradients that are not cleared",
    rows=(58,),
    citations=("docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad",),
    needs=frozenset({"loop"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH", "NOT_FINITE", "SCALE_COLLAPSED", "ACTIVATIONS_TOO_LARGE"),
)
