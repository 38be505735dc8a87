"""Gradients are cleared before every backward pass, and a step uses only the last pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.contributions import GradientLedger
from halfstep.doctor.record.source import is_only_call
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 2
_SHARE = 0.5  # of the steps; the windows at the end of an epoch may be shorter
_ALWAYS = 0.9  # of the steps, if each of them discards a single pass


def judge(evidence: Evidence) -> Finding | None:
    """Find steps that use only the last of several backward passes of one line."""
    for each in evidence.of(GradientLedger).optimizers:
        count = sum(early.steps for early in each.early)
        if count < _OFTEN:
            continue
        usual = each.early[0]
        if count < (_SHARE if usual.passes > 1 else _ALWAYS) * each.direct:
            continue
        line = usual.zero.text if usual.zero and is_only_call(usual.zero.text) else ""
        line = line or "optimizer.zero_grad()"
        after = usual.step.text if usual.step else ""
        return Finding(
            summary="the gradients are cleared before every backward(), so each step uses only the "
            f"last of its {usual.passes + 1} backward passes",
            facts=(
                (
                    f"in {count} of {counted(each.direct, 'step')}, the gradients of "
                    f"{counted(usual.passes, 'backward pass', 'backward passes')} were cleared "
                    "before anything used them"
                ),
            ),
            change=(
                f"- {line}",
                f"  {after if is_only_call(after) else 'optimizer.step()'}",
                f"+ {line}  # in the same block, after the step",
            ),
            confidence=LIKELY,
            site=usual.zero,
        )
    return None


RULE = Rule(
    code="GRADIENTS_CLEARED_EARLY",
    name="gradients that are cleared before a step uses them",
    rows=(58,),
    citations=("bytetriper/RAE#67", "huggingface/accelerate#1299"),
    needs=frozenset({GradientLedger.signal}),
    judge=judge,
    harmless=True,
)
