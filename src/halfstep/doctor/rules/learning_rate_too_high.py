"""The learning rate is too high: the loss grows until it overflows, in any format."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

GROWTH = 30.0
LOOK_BACK = 8


def judge(evidence: Evidence) -> Finding | None:
    """Find a loss that grew step by step before it was not finite, in fp32 too."""
    bad = evidence.numbers.first_bad
    if bad is None:
        return None
    losses = [
        abs(step.loss)
        for step in evidence.numbers.steps
        if step.iteration < bad.iteration and step.loss is not None and isfinite(step.loss)
    ]
    if len(losses) < 2:
        return None
    recent = losses[-LOOK_BACK:]
    if recent[-1] < GROWTH * min(losses) or recent[-1] < recent[0]:
        return None
    replays = [each for each in evidence.replays if each.name == "fp32" and not each.note]
    exact = "the same step in fp32 is finite, but only just: it had grown before it overflowed"
    if replays and not replays[0].finite:
        exact = "the same step in fp32 is not finite either"
    return Finding(
        summary=f"the loss grew from {min(losses):.3g} to {recent[-1]:.3g} before it was not "
        f"finite, at a learning rate of {bad.learning_rate:g}: training diverged",
        facts=(
            f"losses before iteration {bad.iteration}: "
            + ", ".join(f"{each:.3g}" for each in recent),
            exact,
        ),
        change=(f"- lr={bad.learning_rate:g}", f"+ lr={bad.learning_rate / 10:g}  # or warm up"),
        confidence=LIKELY,
        ruled_out=("precision: the growth came before any overflow",),
    )


RULE = Rule(
    code="LEARNING_RATE_TOO_HIGH",
    name="training diverged",
    rows=(49,),
    citations=("facebookresearch/mae#42", "lucidrains/denoising-diffusion-pytorch#102"),
    needs=frozenset({"numbers", "replays"}),
    judge=judge,
    explains=("ACTIVATIONS_TOO_LARGE", "ATTENTION_LOGITS_OVERFLOW", "EXP_OVERFLOW"),
)
