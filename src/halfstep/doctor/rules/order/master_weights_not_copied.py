"""An optimizer updates fp32 copies of a half-precision model, which never gets them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.sites import Site

STEPS = 2
_PART = (
    "+ # after each step, copy all that the optimizer updates back into the parameters, also what",
    "+ # is added to it later: go over the same lists as where the gradients are copied",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find half-precision parameters that stay unchanged while an optimizer updates copies."""
    for model in evidence.static.models:
        trained = sum(model.formats.values())
        if model.first_half is None or not model.unchanged:
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
            rest = any(
                each.forgotten and each.unchanged < sum(each.formats.values())
                for each in evidence.static.models
            )
            return Finding(
                summary=f"{optimizer.kind} updates copies of the parameters of {model.kind}, and "
                "the program does not copy "
                + (
                    f"{model.unchanged} of them back: they do not change"
                    if rest
                    else "them back: the model does not change"
                ),
                facts=(
                    (
                        f"after {counted(optimizer.steps, 'step')}, "
                        f"{'all ' if model.unchanged == trained else f'{model.unchanged} of '}"
                        f"{trained} trainable parameters of {model.kind} are as they were in the "
                        "first half"
                    ),
                    "they get gradients, but the optimizer has copies with other values",
                ),
                change=_PART if rest else _whole(site),
                site=site,
            )
    return None


def _whole(site: Site | None) -> tuple[str, ...]:
    return (
        f"  {site.text if site else 'optimizer.step()'}",
        "+ with torch.no_grad():",
        "+     for parameter, master in zip(model.parameters(), masters):",
        "+         parameter.copy_(master)",
    )


RULE = Rule(
    code="MASTER_WEIGHTS_NOT_COPIED",
    name="master weights that are not copied back",
    rows=(3,),
    citations=("NVIDIA/apex#507",),
    needs=frozenset({"loop", "static"}),
    judge=judge,
    harmless=True,
)
