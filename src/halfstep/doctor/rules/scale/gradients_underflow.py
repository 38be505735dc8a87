"""fp16 gradients become zero, because no gradient scaler multiplies the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.replayed import Rounded

MOST = 0.3


def judge(evidence: Evidence) -> Finding | None:
    """Find gradient elements that are 0 in the program's formats, but not in fp32."""
    if evidence.precision.vanished:
        return _in_a_line(evidence.precision.vanished[0])
    if evidence.loop.of("scale"):
        return None
    in_fp16 = any(event.facts["autocast"] == "fp16" for _, event in evidence.loop.of("forward"))
    in_fp16 |= any(model.formats.get("fp16") for model in evidence.static.models)
    lost = evidence.precision.underflowing(MOST)
    if not in_fp16 or not lost:
        return None
    worst = max(lost, key=lambda each: each.flushed)
    followed = len(evidence.precision.agreements)
    return Finding(
        summary="there is no loss scale, and gradients are too small for fp16: they become 0",
        facts=(
            (
                f"{worst.parameter}: {worst.flushed:.0%} of the gradient's elements are 0 in fp16, "
                "but not in fp32"
            ),
            f"{len(lost)} of {counted(followed, 'gradient')} lost at least {MOST:.0%} in this way",
        ),
        change=(
            "+ scaler = torch.amp.GradScaler(device_type)  # once, before the loop",
            "- loss.backward()",
            "+ scaler.scale(loss).backward()",
            "- optimizer.step()",
            "+ scaler.step(optimizer)",
            "+ scaler.update()",
        ),
        module=worst.parameter.rpartition(".")[0],
    )


def _in_a_line(lost: Rounded) -> Finding:
    """Return the finding for a line of a backward that the program has written itself."""
    line = lost.site.text if lost.site is not None else ""
    return Finding(
        summary=f"{lost.lost} of {lost.count} results of this line of a backward are 0 in fp16, "
        f"but not in fp32, where the largest is {lost.largest:.3g}: a loss scale only helps what "
        "is computed after it was multiplied in",
        facts=("the smallest number that fp16 represents is 5.96e-08",),
        change=(
            f"  {line}",
            "+ # compute it in fp32; or multiply by the incoming gradient, which contains the loss",
            "+ # scale, before this division",
        ),
        confidence=LIKELY,
        site=lost.site,
        module=lost.module,
    )


RULE = Rule(
    code="GRADIENTS_UNDERFLOW",
    name="fp16 gradients without a loss scale",
    rows=(51,),
    citations=("arXiv:1710.03740, section 3.2",),
    needs=frozenset({"loop", "static", "precision"}),
    judge=judge,
    explains=("GRADIENTS_VANISH", "NO_GRADIENTS"),
)
