"""A checkpoint does not keep the state of the random generators, and its function draws numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.program.recomputed import RandomCheckpoints
from halfstep.doctor.verdict import CERTAIN, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 2
_ARGUMENT = "preserve_rng_state=False"


def judge(evidence: Evidence) -> Finding | None:
    """Find checkpoints that draw random numbers, and draw other ones in the backward pass."""
    for line in evidence.of(RandomCheckpoints).lines:
        if line.draws < _OFTEN:
            continue
        text = line.site.text if line.site else ""
        change = (
            (f"- {text}", f"+ {text.replace(_ARGUMENT, 'preserve_rng_state=True')}")
            if _ARGUMENT in text
            else ("+ # preserve_rng_state=True, for this checkpoint",)
        )
        return Finding(
            summary="a checkpoint with preserve_rng_state=False draws random numbers, such as "
            "those of dropout: the backward pass computes it again with other ones, so the "
            "gradients do not belong to the loss",
            facts=(
                f"{line.draws} of {counted(line.examined, 'examined run')} drew random numbers",
                f"{counted(line.count, 'call')} with gradients",
            ),
            change=change,
            confidence=CERTAIN,
            site=line.site,
        )
    return None


RULE = Rule(
    code="CHECKPOINT_WITHOUT_RNG_STATE",
    name="a checkpoint whose dropout changes in the backward pass",
    rows=(58,),
    citations=("allenai/OLMo#702", "ankanbhunia/PIDM#66"),
    needs=frozenset({"recomputed"}),
    judge=judge,
)
