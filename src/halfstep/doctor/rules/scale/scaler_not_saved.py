"""Checkpoints contain the optimizer's state but not the gradient scaler's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find checkpoints with an optimizer's state while the scaler's state is never saved."""
    with_optimizer = [each for each in evidence.saves if each.optimizer]
    if not with_optimizer or any(each.scaler for each in evidence.saves):
        return None
    if not evidence.loop.of("scaler step"):
        return None
    first = with_optimizer[0]
    return Finding(
        summary="checkpoints contain the optimizer's state but not the gradient scaler's: a "
        "resumed run starts at the initial loss scale, and skips steps or loses small gradients "
        "until the scale has adapted",
        facts=(
            f"torch.save() saved optimizer state {counted(first.count, 'time')}",
            "no checkpoint contains scaler state",
        ),
        change=(
            '+ checkpoint["scaler"] = scaler.state_dict()',
            f"  {first.site.text if first.site else 'torch.save(checkpoint, path)'}",
            '+ # and when resuming: scaler.load_state_dict(checkpoint["scaler"])',
        ),
        site=first.site,
    )


RULE = Rule(
    code="SCALER_NOT_SAVED",
    name="a gradient scaler left out of checkpoints",
    rows=(8,),
    citations=("huggingface/transformers#11663", "facebookresearch/detectron2#3686"),
    needs=frozenset({"loop", "saves"}),
    judge=judge,
    harmless=True,
)
