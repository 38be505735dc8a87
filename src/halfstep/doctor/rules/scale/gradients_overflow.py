"""fp16 gradients become inf because the loss is too large, and there is no scaler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Fact, Loop

_MAX = 65504.0


def judge(evidence: Evidence) -> Finding | None:
    """Find fp16 gradients that overflow without a scaler, and are finite for a smaller loss."""
    bad = evidence.numbers.first_bad
    smaller = [each for each in evidence.replays if each.name == "smaller loss" and each.finite]
    births = [each for each in evidence.births if each.culprit]
    if evidence.loop.of("scale") or bad is None or not smaller or not births:
        return None
    if evidence.stays_finite and not evidence.numbers.left_out:
        return None  # All parameters stay finite, so the loop itself adapts to such steps.
    replay, birth = smaller[-1], births[0]
    if birth.phase != "backward" or birth.output.format != "fp16" or not birth.overflowed:
        return None
    return Finding(
        summary=f"gradients are too large for fp16, and no gradient scaler skips the step: "
        f"in the backward pass, {birth.reach}, and the maximum of fp16 is {_MAX:g}",
        facts=(
            birth.appears,
            f"the backward pass starts from a loss of {replay.loss:.4g}",
            f"with a loss that is {1 / replay.scale:g} times smaller, all gradients are finite",
        ),
        change=_change(evidence),
        confidence=LIKELY,
        site=birth.user_site,
        module=birth.module,
    )


def _change(evidence: Evidence) -> tuple[str, ...]:
    is_called = not evidence.loop.of("backward") and bool(evidence.loop.of("grad"))
    if is_called or evidence.numbers.are_own:
        what = "autograd.grad()" if is_called else "backward()"
        return (
            f"+ # multiply the loss by a loss scale before {what}, divide the gradients by it",
            "+ # in fp32, and skip steps with inf or NaN; or differentiate a mean, not a sum",
        )
    backward = _lines(evidence.loop, "backward") or ["loss.backward()"]
    # By a constant: these lines divide the gradients by the loop's own loss scale.
    divided = [each for each in _lines(evidence.loop, "write", linear=True) if "div" in each]
    return (
        "+ scaler = torch.amp.GradScaler(device_type)  # once, before the loop",
        f"- {backward[0]}",
        "+ scaler.scale(loss).backward()  # without a constant factor of your own",
        *(f"- {each}" for each in divided[:1]),
        "- optimizer.step()",
        "+ scaler.step(optimizer)",
        "+ scaler.update()",
    )


def _lines(loop: Loop, kind: str, **facts: Fact) -> list[str]:
    return [
        event.site.text
        for _, event in loop.of(kind)
        if event.site and all(event.facts[name] == value for name, value in facts.items())
    ]


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
