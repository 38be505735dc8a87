"""The loss is an fp16 tensor when it is multiplied by the loss scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Call, Evidence

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
_CHANGE = ("+ # compute the whole loss in fp32: criterion(outputs.float(), labels)",)


def judge(evidence: Evidence) -> Finding | None:
    """Find a loss that overflows fp16, or skipped steps after an fp16 loss was scaled."""
    if not any(map(_is_outside, evidence.calls)):
        return None
    births = [each for each in evidence.births if each.culprit and each.phase == "forward"]
    for birth in births:
        # A mean may be within fp16's range although its squares are not.
        if birth.module or birth.output.format != "fp16" or birth.exact is None:
            continue
        if evidence.exact_is_finite():
            return _beyond(birth)
    return None if births else _scaled(evidence)


def _beyond(birth: Birth) -> Finding:
    return Finding(
        summary=f"the loss is computed in fp16, outside autocast: "
        f"{birth.op.removeprefix('aten.')} gives inf in fp16 and "
        f"{birth.exact:.4g} in float64",
        facts=(birth.appears, "the same step in fp32 is finite"),
        change=_CHANGE,
        site=birth.user_site,
    )


def _scaled(evidence: Evidence) -> Finding | None:
    halves = [event for _, event in evidence.loop.of("scale") if event.facts["format"] == "fp16"]
    if not halves or evidence.numbers.skips == 0:
        return None
    event = halves[0]
    return Finding(
        summary="the loss is computed in fp16, outside autocast: the first gradient of the "
        "backward pass is the loss scale, also in fp16, where a loss scale of 65536 or more is inf",
        facts=(
            f"scaler.scale() was given an fp16 loss {evidence.loop.share(event, 'format')}",
            f"skipped steps: {evidence.numbers.skips}",
        ),
        change=_CHANGE,
        confidence=LIKELY,
        site=event.site,
    )


def _is_outside(call: Call) -> bool:
    """Return whether a call reduces fp16 numbers to an fp16 loss without autocast.

    Calls under autocast do not count: some devices return a mean in fp16 there, and the loss scale
    then adapts after one skipped step.
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
    needs=frozenset({"loop", "numbers", "calls", "births", "replays"}),
    judge=judge,
    explains=("ACTIVATIONS_TOO_LARGE", "MEAN_SQUARE_OVERFLOW"),
)
