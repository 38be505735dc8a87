"""Gradients multiplied by one scaler are divided by another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a scaler's step, or its failed call, on gradients that another scaler multiplied."""
    for _, event in evidence.loop.of("scaler step") + evidence.loop.of("raised"):
        if not event.facts["foreign"]:
            continue
        scales = [each.scale for each in evidence.static.scalers if each.scale is not None]
        return Finding(
            summary=f"scaler {event.facts['scaler']} steps optimizer {event.facts['optimizer']}, "
            "but some of the gradients come from a loss that another scaler multiplied: these "
            "gradients are divided by the wrong loss scale",
            facts=(
                f"{evidence.loop.share(event, 'foreign')}, another scaler had multiplied gradients",
                f"last loss scales of the scalers: {', '.join(f'{each:g}' for each in scales)}",
            ),
            change=(
                "+ # use one scaler for all losses that share parameters, then one update():",
                "+ scaler.scale(loss_a).backward(retain_graph=True)",
                "+ scaler.scale(loss_b).backward()",
            ),
            site=event.site,
        )
    return None


RULE = Rule(
    code="GRADIENTS_OF_ANOTHER_SCALER",
    name="gradients that another scaler multiplied",
    rows=(6,),
    citations=("NVIDIA/apex#179", "huggingface/accelerate#174"),
    needs=frozenset({"loop", "static"}),
    judge=judge,
)
