"""Gradients are clipped or changed in another way while they are still scaled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.order import optimizer_name
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Event, Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a write to gradients between a scaled backward and their unscaling."""
    changed = [
        event
        for _, event in evidence.loop.of("write")
        if event.facts["scaled"] and not event.facts["linear"]
    ]
    if not changed:
        return None
    event = changed[0]
    line = f"  {event.site.text}" if event.site else "  torch.nn.utils.clip_grad_norm_(...)"
    name = optimizer_name(evidence.loop, event.facts["optimizer"])
    late = _unscaled_after(evidence, event)
    unscale = late.site.text if late and late.site else f"scaler.unscale_({name})"
    change = (f"+ {unscale}", line, f"- {unscale}") if late else (f"+ {unscale}", line)
    norms = [step.gradient_norm for step in evidence.numbers.steps if step.gradient_norm]
    facts = [
        (
            f"{evidence.loop.share(event, 'scaled', 'linear')} gradients changed "
            "after backward and before unscale_ (their version counters moved)"
        )
    ]
    if norms:
        facts.append(f"the optimizer was given a gradient norm of {norms[len(norms) // 2]:.3g}")
    return Finding(
        summary="gradients are changed while they are still multiplied by the loss scale: a limit "
        "of 1 then acts like a limit of 1/scale, and the model hardly learns",
        facts=tuple(facts),
        change=change,
        site=event.site,
    )


def _unscaled_after(evidence: Evidence, write: Event) -> Event | None:
    """Return the `unscale_` that comes after a write in its iteration, too late."""
    for shape in evidence.loop.shapes:
        if write in shape.events:
            later = shape.events[shape.events.index(write) :]
            return next((each for each in later if each.kind == "unscale"), None)
    return None


RULE = Rule(
    code="GRADIENTS_CHANGED_WHILE_SCALED",
    name="clipping before unscale_",
    rows=(2,),
    citations=(
        "milesial/Pytorch-UNet#470",
        "pytorch/examples#1196",
        "Lightning-AI/pytorch-lightning#9330",
    ),
    needs=frozenset({"loop", "numbers"}),
    judge=judge,
)
