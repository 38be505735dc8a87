"""A mask of attention hides the tokens of the input, and lets the padding through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a mask that is set exactly where the input is not padding."""
    for found in evidence.of(Influence).masks:
        return Finding(
            summary="the mask of the attention is inverted: it hides all tokens of the input, "
            f"{found.share:.0%} of it, and none of the padding (token {found.token})",
            facts=("the scores of all these tokens are so low that their weights are 0",),
            change=(
                (
                    "+ # invert the mask, so that it hides the padding: the positions where "
                    f"tokens == {found.token}"
                ),
            ),
            confidence=LIKELY,
            site=found.at.site,
            module=found.at.module,
        )
    return None


RULE = Rule(
    code="MASK_INVERTED",
    name="a mask that hides the tokens and not the padding",
    rows=(35,),
    citations=("mlwithme/TransformerTranslation#6", "earthspecies/avex#26"),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
