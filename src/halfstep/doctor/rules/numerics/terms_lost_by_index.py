"""A sum by index, such as x[index] += y, loses terms where the index repeats."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_SUM = re.compile(r"(\w+)\[(\w+)\] \+= (.+)")


def judge(evidence: Evidence) -> Finding | None:
    """Find writes that replace each other, although each adds a term."""
    for found in evidence.of(Influence).writes:
        line = found.at.site.text if found.at.site else ""
        summed = _SUM.fullmatch(line) if found.is_of_rows else None
        change = (
            (
                f"- {line}",
                f"+ {summed[1]} = {summed[1]}.index_add(0, {summed[2]}, {summed[3]})",
            )
            if summed
            else ("+ # x = x.index_add(0, index, y), or index_put(..., accumulate=True)",)
        )
        if found.replaces:
            yields = "and which one is undefined; the backward gives its gradient to all of them"
            change = (
                "+ # scatter_add(...) for the sum, scatter_reduce(...) for a mean or maximum",
            )
        else:
            yields = "and which one is undefined"
        return Finding(
            summary=f"{found.op} writes {found.written} elements to {found.places} places"
            + ("" if found.replaces else ", each as the old element plus a term")
            + f": where the index repeats, only one of them stays, {yields}",
            facts=(f"mean size of a term: {found.size:.3g}; of what is lost: {found.lost:.3g}",),
            change=change,
            confidence=LIKELY if found.needed else POSSIBLE,
            site=found.at.site,
            module=found.at.module,
        )
    return None


RULE = Rule(
    code="TERMS_LOST_BY_INDEX",
    name="a sum by index that loses terms where the index repeats",
    rows=(35,),
    citations=("docs.pytorch.org/docs/stable/generated/torch.Tensor.index_put_",),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
