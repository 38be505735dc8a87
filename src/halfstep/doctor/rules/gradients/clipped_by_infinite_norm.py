"""The gradient norm is infinite, so clipping multiplies gradients by 0, and inf becomes NaN."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from halfstep.doctor.record import PRODUCTS
from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find gradients that contain only NaN and zeros after the loop changed them."""
    bad, gradients = evidence.numbers.first_bad, evidence.gradients
    if bad is None or bad.loss is None or not isfinite(bad.loss):
        return None
    if gradients.iteration != bad.iteration or gradients.infs or not gradients.nans:
        return None
    if gradients.zeros + gradients.nans < gradients.elements:
        return None
    born = [each for each in evidence.births if each.culprit and each.phase == "backward"]
    if not gradients.zeros and not any(map(_is_overflow, born)):
        return None  # Gradients were NaN before clipping, so their norm was NaN, not inf.
    at = [each for each in evidence.loop.shapes if each.first <= bad.iteration <= each.last]
    writes = [event for shape in at for event in shape.of("write")]
    steps = [event for shape in at for event in shape.of("step") if not event.facts["by_scaler"]]
    if not writes or not steps:
        return None
    return Finding(
        summary=f"clipping left {counted(gradients.nans, 'NaN')} and "
        f"{counted(gradients.zeros, 'zero')} in the gradients of step {bad.iteration}: their norm "
        "was not finite, and clipping multiplied inf by 0",
        facts=(
            f"the loss is finite: {bad.loss:.4g}",
            *(
                f"the {each.value} came from {each.op}, in the backward pass of "
                f"{each.forward_op}, {each.where}"
                for each in born
            ),
        ),
        change=(
            "- torch.nn.utils.clip_grad_norm_(parameters, 1.0)",
            "+ norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)",
            "- optimizer.step()",
            "+ if torch.isfinite(norm): optimizer.step()",
        ),
        site=writes[0].site,
    )


def _is_overflow(birth: Birth) -> bool:
    # Other operators have their own rules.
    return birth.kind == "inf" and birth.op.startswith((*PRODUCTS, "aten._to_copy", "aten.sum"))


RULE = Rule(
    code="CLIPPED_BY_INFINITE_NORM",
    name="gradients clipped by an infinite norm",
    rows=(44,),
    citations=(
        "pytorch/pytorch#46849",
        "microsoft/DeepSpeed#7171",
    ),
    needs=frozenset({"births", "numbers", "gradients", "loop"}),
    judge=judge,
    explains=("ROOT_AT_ZERO",),
)
