"""The gradient norm is infinite, so clipping multiplies gradients by 0, and inf becomes NaN."""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING

from halfstep.doctor.record import PRODUCTS
from halfstep.doctor.signals.ledgers.clipping import ClippingLines
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_FEWEST = 3  # steps
_SHARE = 0.5  # of the examined steps


def judge(evidence: Evidence) -> Finding | None:
    """Find gradients that contain only NaN and zeros after the loop changed them."""
    bad, gradients = evidence.numbers.first_bad, evidence.gradients
    if bad is None:
        return _of_finite(evidence)
    if bad.loss is None or not isfinite(bad.loss) or gradients.iteration != bad.iteration:
        return None
    if not 0 < gradients.nans >= gradients.elements - gradients.zeros or gradients.infs:
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


def _of_finite(evidence: Evidence) -> Finding | None:
    """Find finite gradients that clipping multiplies by 0, because their squares overflow.

    A scaler makes infinite gradients, and then leaves out the step.
    """
    clipping = evidence.of(ClippingLines)
    clips = [(each.site, each.norms) for each in clipping.lines]
    # A write of the loop that leaves no gradient at all.
    clips += [
        (each.site, tuple([before for before, _ in each.norms]))
        for each in clipping.shrinking
        if not any(after for before, after in each.norms if before == inf)
    ]
    for place, norms in clips:
        count = sum(norm == inf for norm in norms)
        if not evidence.static.scalers and count >= max(_FEWEST, _SHARE * len(norms)):
            return Finding(
                summary="the gradients are finite, but their squares overflow, so their norm is "
                "infinite, and clipping multiplies them by 0: such steps change nothing",
                facts=(f"the norm was infinite in {count} of {len(norms)} examined steps",),
                change=(
                    "+ # make the loss smaller, for example by inputs that are standardised",
                    *((f"  {place.text}",) if place else ()),
                ),
                confidence=LIKELY,
                site=place,
            )
    return None


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
    also=frozenset({"clipping", "static"}),
    explains=("ROOT_AT_ZERO", "NO_GRADIENTS"),
)
