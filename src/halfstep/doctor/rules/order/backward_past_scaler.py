"""The scaler unscales gradients of a loss that was never multiplied by the loss scale."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.order import cleared_after
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Event, Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find gradients of an unscaled loss that a scaler then unscales."""
    for shape, event in evidence.loop.of("backward"):
        reached = {*str(event.facts["reaches"]).split(",")} - cleared_after(shape, event)
        stepped = {str(each.facts["optimizer"]) for each in shape.of("scaler step")}
        # A scaler that has never scaled a loss raises an error instead of unscaling.
        stepped |= {
            str(each.facts["optimizer"])
            for each in shape.of("raised")
            if each.facts["gradients"] == "plain"
        }
        if event.facts["scaled"] or not stepped & reached:
            continue
        return Finding(
            summary="backward() runs on a loss that scaler.scale() has not multiplied, but the "
            "scaler still divides the gradients by the loss scale: the gradients become almost 0",
            facts=(
                f"{evidence.loop.share(event, 'scaled', 'reaches')}, the loss was not scaled",
                "other gradients of the same optimizer were scaled"
                if event.facts["mixed"]
                else "no backward() on a scaled loss came before this call",
            ),
            change=(
                f"- {event.site.text}" if event.site else "- loss.backward()",
                f"+ scaler.scale({_loss(event)}).backward()",
            ),
            site=event.site,
        )
    return None


def _loss(event: Event) -> str:
    found = re.match(r"([\w.]+)\.backward\(", event.site.text) if event.site else None
    return found[1] if found else "loss"


RULE = Rule(
    code="BACKWARD_NOT_SCALED",
    name="a backward pass bypassing the gradient scaler",
    rows=(6,),
    citations=("huggingface/accelerate#174", "lucidrains/stylegan2-pytorch#100"),
    needs=frozenset({"loop"}),
    judge=judge,
)
