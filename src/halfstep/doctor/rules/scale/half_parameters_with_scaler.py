"""A GradScaler is used with fp16 parameters, whose gradients it refuses to unscale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a scaler that is used on an optimizer of fp16 parameters."""
    used = {event.facts["scaler"] for _, event in evidence.loop.of("scale")}
    fp16 = [each for each in evidence.static.optimizers if each.formats.get("fp16")]
    if not used or not fp16:
        return None
    first = next((model.first_half for model in evidence.static.models if model.first_half), None)
    return Finding(
        summary="a GradScaler is used with fp16 parameters: their gradients are fp16 and cannot "
        "be unscaled without overflow or underflow",
        facts=(
            f"{fp16[0].kind} holds {counted(fp16[0].formats['fp16'], 'fp16 parameter')}"
            + (f"; the first one is {first}" if first else ""),
        ),
        change=(
            "- model.half()",
            "+ with torch.autocast(device_type, dtype=torch.float16):",
            "+     loss = criterion(model(inputs), labels)",
        ),
        site=evidence.ending.site,
        module=(first or "").rpartition(".")[0],
    )


RULE = Rule(
    code="FP16_PARAMETERS_WITH_SCALER",
    name="fp16 parameters under a gradient scaler",
    rows=(3,),
    citations=("pytorch/pytorch#74739", "Lightning-AI/pytorch-lightning#5140"),
    needs=frozenset({"loop", "static", "ending"}),
    judge=judge,
    explains=(
        "LEARNING_RATE_TOO_HIGH",
        "NORM_STATISTICS_IN_HALF",
        "OPTIMIZER_EPS_UNDERFLOWS",
        "UPDATES_ROUNDED_AWAY",
    ),
)
