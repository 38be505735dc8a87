"""fp16 gradients become zero, because no gradient scaler multiplies the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.trials import Variation
from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

MOST = 0.3
_SCALE = 2.0**12


def judge(evidence: Evidence) -> Finding | None:
    """Find gradient elements that are 0 in the program's formats, but not in fp32."""
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


def _trial(_: Evidence) -> tuple[Variation, Variation]:
    """Return steps as they are, and steps with a loss scale."""
    return Variation(), Variation(scale=_SCALE)


RULE = Rule(
    code="GRADIENTS_UNDERFLOW",
    name="fp16 gradients without a loss scale",
    rows=(51,),
    citations=("arXiv:1710.03740, section 3.2",),
    needs=frozenset({"loop", "static", "precision"}),
    judge=judge,
    trial=_trial,
)
