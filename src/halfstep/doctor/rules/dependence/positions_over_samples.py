"""Positions are counted over the samples of a batch, and not over the positions of a sequence.

The order of dimensions is not the one that the table of positions was written for. All positions of
a sample get the same vector, which its place in the batch decides, so the model does not know the
order of a sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a table of positions that is joined to samples."""
    for found in evidence.of(Influence).places:
        shape = ", ".join(map(str, found.given))
        return Finding(
            summary=f"positions are counted over the {found.samples} samples of the batch: row i "
            f"of the table goes to sample i, at all of its positions",
            facts=(
                (
                    f"they are joined to a tensor of shape ({shape}); its dimension {found.dim} is "
                    "that of the samples, as a run with another sample shows"
                ),
            ),
            change=(
                *((f"  {found.at.site.text}",) if found.at.site else ()),
                "+ # take as many rows as there are positions, and put them along the dimension of",
                "+ # the positions, such as table[: x.size(1)] of shape (positions, features) for",
                "+ # x of shape (samples, positions, features)",
            ),
            confidence=LIKELY,
            site=found.at.site,
            module=found.at.module,
        )
    return None


RULE = Rule(
    code="POSITIONS_OVER_SAMPLES",
    name="positions that are counted over the samples",
    rows=(11,),
    citations=("songyangco/GETNext#2", "pytorch/tutorials#1547", "tanjimin/C.Origami#42"),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
