"""Gradients are unscaled, or the scaler is updated, before the accumulation is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.order import events_before, raised, second_unscale
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Loop
    from halfstep.doctor.record.sites import Site


def _change(unscale: Site | None) -> tuple[str, ...]:
    """Return the change that calls `unscale_` only after the last backward of a window."""
    line = unscale.text if unscale and unscale.text else "scaler.unscale_(optimizer)"
    return (
        f"- {line}",
        "+ if (micro_batch + 1) % accumulate == 0:  # after the last backward() of a window",
        f"+     {line}",
        "+     # then, also in the if: clipping, scaler.step(), scaler.update(), zero_grad()",
    )


def judge(evidence: Evidence) -> Finding | None:
    """Find a call of `unscale_` or `update` before the last backward of a window."""
    loop = evidence.loop
    for shape, event in loop.of("scaler step"):
        if event.facts["onto_unscaled"] and not event.facts.get("stale"):
            first = next(iter(shape.of("unscale")), event)
            return Finding(
                summary="the scaler unscales gradients before the last backward() of an "
                "accumulation window: later backward() calls add gradients that are still "
                "scaled, and the unscaled gradients are negligible in the sum",
                facts=(
                    (
                        f"{loop.share(event, 'onto_unscaled')}, backward() added scaled gradients "
                        "to unscaled gradients"
                    ),
                ),
                change=_change(first.site if first is not event else None),
                site=first.site,
            )
    second = second_unscale(loop)
    if second is not None and second.in_window:
        return Finding(
            summary="unscale_() is called for every micro-batch of an accumulation window: call it "
            "once, after the last backward() of the window",
            facts=("unscale_() was called twice without an update() between the calls",),
            change=_change(second.event.site),
            site=second.event.site,
        )
    return _updated_early(loop)


def _updated_early(loop: Loop) -> Finding | None:
    early = raised(loop, "No inf checks were recorded prior to update")
    if early is None:
        return None
    shape, event = early
    before = events_before(shape, event)
    if not any(each.kind == "backward" for each in before) or any(
        each.kind in {"step", "scaler step", "unscale", "raised"} for each in before
    ):
        return None
    line = event.site.text if event.site else "scaler.update()"
    return Finding(
        summary="scaler.update() is called after backward() and before scaler.step(): call it "
        "after scaler.step(). In an accumulation window, call both after the last backward()",
        facts=(f"update() raised an error: {event.facts['error']}",),
        change=(
            f"- {line}",
            "  scaler.step(optimizer)",
            f"+ {line}  # in an accumulation window, after its last backward()",
        ),
        site=event.site,
    )


RULE = Rule(
    code="UNSCALED_EVERY_MICRO_STEP",
    name="unscale_() or update() before the step is due",
    rows=(4,),
    citations=("microsoft/Swin-Transformer#311", "huggingface/transformers#24840"),
    needs=frozenset({"loop"}),
    judge=judge,
)
