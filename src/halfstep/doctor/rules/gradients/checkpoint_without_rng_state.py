"""A checkpoint does not keep the state of the random generators, and its function draws numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.program.recomputed import RandomCheckpoint, RandomCheckpoints
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
        if line.source != "default":
            return _not_restored(line)
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
                f"{counted(line.count, 'examined call')} with gradients",
            ),
            change=change,
            confidence=CERTAIN,
            site=line.site,
        )
    return None


def _not_restored(line: RandomCheckpoint) -> Finding:
    """Return the finding for a generator that no checkpoint restores."""
    whose = "a torch.Generator of the program" if line.source == "own" else "numpy or Python"
    return Finding(
        summary=f"a function under a checkpoint draws random numbers from {whose}, which the "
        "checkpoint does not restore: the backward pass computes it again with other ones, so the "
        "gradients do not belong to the loss",
        facts=(
            (
                f"in {line.draws} of {counted(line.examined, 'examined run')}, the numbers were "
                "not those of the forward pass"
            ),
            f"{counted(line.count, 'examined call')} with gradients",
        ),
        change=(
            (
                "+ # draw the numbers before the checkpoint and pass them to its function; or draw "
                "them from torch's default generator, which the checkpoint restores"
            ),
        ),
        confidence=CERTAIN,
        site=line.site,
    )


RULE = Rule(
    code="CHECKPOINT_WITHOUT_RNG_STATE",
    name="a checkpoint whose dropout changes in the backward pass",
    rows=(58,),
    citations=("allenai/OLMo#702", "ankanbhunia/PIDM#66"),
    needs=frozenset({"recomputed"}),
    judge=judge,
)
