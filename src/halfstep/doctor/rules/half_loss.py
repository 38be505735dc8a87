"""The loss itself is fp16 when it is multiplied by the loss scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Call, Evidence

_REDUCTIONS = {
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "kl_div",
    "logsumexp",
    "mean",
    "norm",
    "sum",
}


def judge(evidence: Evidence) -> Finding | None:
    """Find a scaled loss in fp16 and steps that were skipped for it."""
    halves = [pair for pair in evidence.loop.of("scale") if pair[1].facts["format"] == "fp16"]
    if not halves or evidence.numbers.skips == 0 or not any(map(_is_outside, evidence.calls)):
        return None
    shape, event = halves[0]
    return Finding(
        summary="the loss is computed in fp16, outside of autocast: its gradient starts as the "
        "loss scale in fp16, which is inf from 65536 on",
        facts=(
            (
                f"scaler.scale() was given an fp16 loss in {shape.count} of "
                f"{evidence.loop.iterations} iterations"
            ),
            f"{evidence.numbers.skips} steps were skipped",
        ),
        change=(
            "- loss = criterion(outputs, labels)",
            "+ loss = criterion(outputs.float(), labels)",
        ),
        confidence=LIKELY,
        site=event.site,
    )


def _is_outside(call: Call) -> bool:
    """Return whether a call reduces fp16 numbers to an fp16 loss without autocast.

    Under autocast a device may leave a mean in fp16 of its own accord, and the search for the loss
    scale gets over that with one skipped step.
    """
    return (
        call.gradients
        and not call.autocast
        and call.result == "fp16"
        and (call.name.lower().endswith("loss") or call.name in _REDUCTIONS)
    )


RULE = Rule(
    code="LOSS_IN_FP16",
    name="an fp16 loss",
    rows=(14,),
    citations=("tensorflow/tensorflow#38357", "huggingface/pytorch-image-models#1586"),
    needs=frozenset({"loop", "numbers", "calls"}),
    judge=judge,
)
