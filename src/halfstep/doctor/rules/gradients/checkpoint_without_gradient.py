"""A reentrant checkpoint whose inputs require no gradients gives none to its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.program.checkpoints import BlindCheckpoints
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 2
_ARGUMENT = "use_reentrant=True"


def judge(evidence: Evidence) -> Finding | None:
    """Find parameters of an optimizer that only run in such a checkpoint."""
    for each in evidence.of(BlindCheckpoints).lines:
        if each.count < _OFTEN or not each.owned:
            continue
        line = each.site.text if each.site else ""
        change = (
            (f"- {line}", f"+ {line.replace(_ARGUMENT, 'use_reentrant=False')}")
            if _ARGUMENT in line
            else ("+ # with use_reentrant=False, which needs no input that requires gradients",)
        )
        return Finding(
            summary=f"{counted(each.owned, 'parameter')} of the optimizer get no gradients: a "
            "reentrant checkpoint gets only inputs that require no gradients, such as those of a "
            "frozen embedding, and then computes none",
            facts=(
                f"{', '.join(filter(None, each.without)) or 'the parameters'} had no gradient",
                f"{counted(each.count, 'call')} of the checkpoint had no input with gradients",
            ),
            change=change,
            confidence=LIKELY,
            site=each.site,
        )
    return None


RULE = Rule(
    code="CHECKPOINT_WITHOUT_GRADIENT",
    name="a checkpoint that gives its parameters no gradients",
    rows=(11,),
    citations=("huggingface/transformers#42494", "hiyouga/LlamaFactory#4905"),
    needs=frozenset({"checkpoints"}),
    judge=judge,
    explains=("PART_WITHOUT_GRADIENT",),
)
