"""The targets of a causal model are not the next tokens of its input, but other ones of it.

Without a shift, the model copies its input. With a shift in the data set and another one in the
loss, it predicts the token after the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.influence import Shift


def judge(evidence: Evidence) -> Finding | None:
    """Find a causal model whose targets are tokens of its input at a wrong shift."""
    shifts = evidence.of(Influence).shifts
    for found in shifts:
        # A model that sees all positions may reconstruct its input, and another loss of the step
        # may be that of the next token. A decoder may shift its input itself: it reaches less far.
        if found.reach is None or found.reach > 0 or not found.context:
            continue
        if any(map(_is_next, shifts)):
            continue
        if found.shift > found.reach:
            summary = (
                "the targets are the tokens after the next ones: they are shifted twice, probably "
                "once by the data set and once by the model's loss"
            )
            change = ("+ # shift once: pass the tokens themselves as labels, if the model shifts",)
        else:
            which = "the input itself" if found.shift == 0 else "the tokens before its own"
            summary = (
                f"the targets of each position are {which}, which the model sees: it learns to "
                "copy, not to predict the next token"
            )
            change = ("+ # compare outputs with the next tokens: outputs[:, :-1], tokens[:, 1:]",)
        return Finding(
            summary=summary,
            facts=(
                f"output t of {found.length} is compared with input t{found.shift:+d}",
                f"it depends on the input up to t{found.reach:+d} only",
            ),
            change=change,
            confidence=LIKELY,
            site=found.site,
        )
    return None


def _is_next(shift: Shift) -> bool:
    """Return whether targets are the first tokens that the outputs do not depend on."""
    return shift.reach is not None and shift.shift == shift.reach + 1


RULE = Rule(
    code="TARGETS_MISALIGNED",
    name="targets at a wrong shift to the input",
    rows=(35,),
    citations=("huggingface/transformers#32944", "InternLM/InternLM#318"),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
