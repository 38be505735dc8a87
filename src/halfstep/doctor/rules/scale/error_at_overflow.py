"""The loop raises an error at an overflow that the gradient scaler would skip."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_BY_CLIPPING = "is non-finite, so it cannot be clipped"
_BY_ANOMALY = re.compile(r"Function '(\w+)' returned nan values")


def judge(evidence: Evidence) -> Finding | None:
    """Find an error about non-finite gradients that are finite at a lower loss scale."""
    message = evidence.ending.message
    anomaly = _BY_ANOMALY.search(message)
    if _BY_CLIPPING not in message and not anomaly:
        return None
    scales = [each.scale for each in evidence.replays if each.name == "plain" and not each.finite]
    lower = [each for each in evidence.replays if each.name == "lower scale" and each.finite]
    if not scales or not lower:
        return None
    raised = (
        f"anomaly detection raises an error for {anomaly[1]}"
        if anomaly
        else "clip_grad_norm_ raises an error for gradients that are inf or NaN"
    )
    change = (
        ("- torch.autograd.set_detect_anomaly(True)", "+ # turn it on when the scale is found")
        if anomaly
        else ("+ # clip without the argument error_if_nonfinite=True",)
    )
    return Finding(
        summary=f"{raised}, but nothing is wrong except that the loss scale of "
        f"{scales[-1]:g} is still too high: the scaler would skip this step and halve the scale",
        facts=(f"the same step at a loss scale of {lower[-1].scale:g} is finite",),
        change=change,
        site=evidence.ending.site,
    )


RULE = Rule(
    code="ERROR_AT_OVERFLOW",
    name="an exception in a step that the scaler would skip",
    rows=(44,),
    citations=("Lightning-AI/pytorch-lightning#9799", "lightly-ai/lightly-train#255"),
    needs=frozenset({"ending", "replays"}),
    judge=judge,
)
