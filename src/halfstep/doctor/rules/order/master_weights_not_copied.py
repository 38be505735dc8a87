"""An optimizer updates fp32 copies of a half-precision model, which never gets them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

STEPS = 2


def judge(evidence: Evidence) -> Finding | None:
    """Find a half-precision model that stays unchanged while an optimizer updates copies."""
    for model in evidence.static.models:
        trained = sum(model.formats.values())
        if not trained or model.first_half is None or model.unchanged != trained:
            continue
        for number, optimizer in enumerate(evidence.static.optimizers):
            if not optimizer.foreign or optimizer.stale or optimizer.steps < STEPS:
                continue
            if model.training_calls < optimizer.steps:  # The loop trains another model by now.
                continue
            steps = (
                event
                for kind in ("scaler step", "step")
                for _, event in evidence.loop.of(kind)
                if event.facts["optimizer"] == number
            )
            site = next(steps).site
            return Finding(
                summary=f"{optimizer.kind} updates copies of the parameters of {model.kind}, and "
                "the program does not copy them back: the model never changes",
                facts=(
                    (
                        f"after {counted(optimizer.steps, 'step')}, all {trained} trainable "
                        f"parameters of {model.kind} are as before the first step"
                    ),
                    "they get gradients, but the optimizer has copies with other values",
                ),
                change=(
                    f"  {site.text if site else 'optimizer.step()'}",
                    "+ with torch.no_grad():",
                    "+     for parameter, master in zip(model.parameters(), masters):",
                    "+         parameter.copy_(master)",
                ),
                site=site,
            )
    return None


RULE = Rule(
    code="MASTER_WEIGHTS_NOT_COPIED",
    name="master weights that are not copied back",
    rows=(3,),
    citations=("NVIDIA/apex#507",),
    needs=frozenset({"loop", "static"}),
    judge=judge,
    harmless=True,
)
