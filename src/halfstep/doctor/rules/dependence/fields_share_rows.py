"""The categories of several fields read the same rows of one table of vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a table for all fields that is read without the fields' offsets."""
    for found in evidence.of(Influence).tables:
        fields, most = ", ".join(map(str, found.sizes)), max(found.sizes)
        room = (
            f"it has {found.rows} rows, enough for all categories of all fields, but no number "
            f"reaches beyond {most - 1}"
            if sum(found.sizes) <= found.rows
            else f"it has {found.rows} rows, as many as the largest field needs"
        )
        return Finding(
            summary=f"{len(found.sizes)} fields share the first rows of one table: {room}, so a "
            "category has the vector of another field's",
            facts=(f"the fields of the last batch have up to {fields} categories",),
            change=(
                f"+ # a table of {sum(found.sizes)} rows or more, or one for each field",
                "+ # add to the numbers of each field the number of categories before it:",
                "+ # offsets = torch.tensor([0, *sizes[:-1]]).cumsum(0); table(numbers + offsets)",
            ),
            confidence=LIKELY,
            site=found.at.site,
            module=found.at.module,
        )
    return None


RULE = Rule(
    code="FIELDS_SHARE_ROWS",
    name="fields of categories that share the rows of a table",
    rows=(11,),
    citations=("rixwew/pytorch-fm",),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
