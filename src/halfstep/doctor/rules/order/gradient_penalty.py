"""A gradient penalty uses gradients that are still scaled, or that fp16 cannot represent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Event, Evidence, Loop

FLUSHED = 0.2
COSINE = 0.9
LOSS = 0.05
WEIGHTY = 0.05

_CHANGE = (
    "+ scaled = torch.autograd.grad(scaler.scale(loss), inputs, create_graph=True)",
    "+ gradients = [each / scaler.get_scale() for each in scaled]",
    "+ with torch.autocast(device_type, dtype=torch.float16):",
    "+     loss = loss + penalty(gradients)",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find a penalty that is scaled twice, or whose fp16 gradients overflow or underflow."""
    double = [
        (shape, event) for shape, event in evidence.loop.of("grad") if event.facts["create_graph"]
    ]
    if not double:
        return None
    shape, event = double[0]
    if event.facts["scaled"]:
        twice = [each for each in shape.of("scale") if each.facts["already"]]
        return _scaled(evidence.loop, event) if twice else None
    scales = evidence.loop.of("scale")
    if event.facts["half"] != "fp16" or not scales:
        return None
    harm = _harm(evidence)
    if harm is None:
        return None
    return Finding(
        summary="a gradient penalty computes gradients in fp16 without a loss scale, and these "
        "gradients overflow or underflow",
        facts=(harm, "the loss given to autograd.grad(create_graph=True) was not scaled"),
        change=_CHANGE,
        confidence=LIKELY,
        site=event.site,
    )


def _scaled(loop: Loop, event: Event) -> Finding:
    return Finding(
        summary="a penalty is computed from gradients that are still multiplied by the loss scale, "
        "and the scaler multiplies the penalty again: the weight of the penalty depends on the "
        "loss scale",
        facts=(
            f"{loop.share(event, 'scaled')}, autograd.grad() was given a scaled loss",
            "what was given to scaler.scale() still contained the loss scale, or a power of it",
        ),
        change=_CHANGE,
        site=event.site,
    )


def _harm(evidence: Evidence) -> str | None:
    plain = [each for each in evidence.replays if each.name == "plain" and not each.note]
    fp32 = {each.iteration for each in evidence.replays if each.name == "fp32" and each.finite}
    if any(not each.finite and each.iteration in fp32 for each in plain):
        return "a step is finite in fp32, but not in the program's formats"
    precision = evidence.precision
    lost = precision.underflowing(FLUSHED)
    if lost:
        return (
            f"{lost[0].parameter}: {lost[0].flushed:.0%} of the gradient's elements become "
            "0, but not in fp32"
        )
    largest = max((each.exact_norm for each in precision.agreements), default=0.0)
    turned = [
        each
        for each in precision.agreements
        if each.cosine is not None and each.cosine < COSINE and each.exact_norm > WEIGHTY * largest
    ]
    if turned:
        return (
            f"{turned[0].parameter}: the cosine between its gradient and its gradient in fp32 is "
            f"{turned[0].cosine:.2f}"
        )
    if precision.loss is None or precision.exact_loss is None:
        return None
    if abs(precision.loss - precision.exact_loss) > LOSS * abs(precision.exact_loss):
        return f"the loss is {precision.loss:.4g}; in fp32, it is {precision.exact_loss:.4g}"
    return None


RULE = Rule(
    code="PENALTY_ON_SCALED_GRADIENTS",
    name="a gradient penalty with a wrong loss scale",
    rows=(7,),
    citations=("Lightning-AI/pytorch-lightning#12600", "NVIDIA/apex#873"),
    needs=frozenset({"loop", "replays", "precision"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH", "LOSS_IN_FP16"),
)
