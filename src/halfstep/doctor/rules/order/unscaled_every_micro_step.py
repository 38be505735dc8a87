"""Scaled gradients are accumulated onto gradients that the scaler has already unscaled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.order import events_before, raised, second_unscale
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Loop
    from halfstep.doctor.record.sites import Site

_CHANGE = (
    "  scaler.scale(loss / accumulate).backward()",
    "+ if (number + 1) % accumulate == 0:",
    "+     scaler.unscale_(optimizer)",
    "+     # clipping, scaler.step(optimizer), scaler.update() and zero_grad() belong here",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find a step on gradients of which some were divided by the loss scale and some not."""
    loop = evidence.loop
    for shape, event in loop.of("scaler step"):
        if event.facts["onto_unscaled"] and not event.facts.get("stale"):
            first = next(iter(shape.of("unscale")), event)
            return Finding(
                summary="the scaler unscales gradients before the last backward() of an "
                "accumulation window: later backward() calls add gradients that are still "
                "scaled, and the unscaled ones are negligible in the sum",
                facts=(
                    (
                        f"{loop.share(event, 'onto_unscaled')} backward() added to "
                        "gradients that the scaler had unscaled and zero_grad() had not cleared"
                    ),
                ),
                change=_CHANGE,
                site=first.site,
            )
    loud = _refused(loop)
    if loud is None:
        return None
    fact, site = loud
    return Finding(
        summary="unscale_() or update() is called for every micro-batch of an accumulation: "
        "they belong to the end of the window, after its last backward()",
        facts=(fact,),
        change=_CHANGE,
        site=site,
    )


def _refused(loop: Loop) -> tuple[str, Site | None] | None:
    second = second_unscale(loop)
    if second is not None and second.in_window:
        return "unscale_() was called twice without an update() between", second.event.site
    early = raised(loop, "No inf checks were recorded prior to update")
    if early is None:
        return None
    shape, event = early
    before = events_before(shape, event)
    if not any(each.kind == "backward" for each in before) or any(
        each.kind in {"step", "scaler step", "unscale", "raised"} for each in before
    ):
        return None
    return f"update() after a backward() without a step: {event.facts['error']}", event.site


RULE = Rule(
    code="UNSCALED_EVERY_MICRO_STEP",
    name="unscaling inside an accumulation window",
    rows=(4,),
    citations=("microsoft/Swin-Transformer#311", "huggingface/transformers#24840"),
    needs=frozenset({"loop"}),
    judge=judge,
)
