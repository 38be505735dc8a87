"""fp16 gradients become inf because the loss is too large, and no scaler skips the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_MAX = 65504.0


def judge(evidence: Evidence) -> Finding | None:
    """Find fp16 gradients that overflow in an applied step, and are finite for a smaller loss."""
    bad = evidence.numbers.first_bad
    smaller = [each for each in evidence.replays if each.name == "smaller loss" and each.finite]
    births = [each for each in evidence.births if each.culprit]
    if evidence.loop.of("scale") or bad is None or not smaller or not births:
        return None
    if evidence.stays_finite:
        return None  # All parameters stay finite, so the optimizer skips such steps.
    replay, birth = smaller[-1], births[0]
    if birth.phase != "backward" or birth.output.format != "fp16" or not birth.overflowed:
        return None
    return Finding(
        summary=f"gradients are too large for fp16, and no gradient scaler skips the step: "
        f"in the backward pass, {birth.operator} has results up to {birth.exact:.4g}, and the "
        f"maximum of fp16 is {_MAX:g}",
        facts=(
            birth.appears,
            f"backward() starts from a loss of {replay.loss:.4g}",
            f"with a loss that is {1 / replay.scale:g} times smaller, all gradients are finite",
        ),
        change=(
            "+ scaler = torch.amp.GradScaler(device_type)",
            "- loss.backward()",
            "+ scaler.scale(loss).backward()  # without a constant factor of your own",
            "- optimizer.step()",
            "+ scaler.step(optimizer)",
            "+ scaler.update()",
        ),
        confidence=LIKELY,
        site=birth.user_site,
        module=birth.module,
    )


RULE = Rule(
    code="GRADIENTS_OVERFLOW",
    name="fp16 gradients overflow without a gradient scaler",
    rows=(51,),
    citations=("open-mmlab/mmdetection#3690",),
    needs=frozenset({"births", "loop", "numbers", "replays", "static"}),
    judge=judge,
    symptom=True,
    explains=("NOT_FINITE",),
)
