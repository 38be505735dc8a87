"""A training asks an iterator for batches that is at its end, so its later epochs have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.passes import PassLedger
from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find iterators of data loaders that are used after their end."""
    for line in evidence.of(PassLedger).lines:
        if not line.after_end:
            continue
        return Finding(
            summary="the iterator of a data loader gave "
            f"{counted(sum(line.taken), 'batch', 'batches')} and was at its end, but was asked for "
            f"batches {counted(line.after_end, 'time')} more: the later epochs make no step",
            facts=("iter(loader) gives an iterator for one pass; the loader itself begins anew",),
            change=(
                "+ # loop over the loader, not over its iterator: for batch in loader:",
                *((f"  {line.site.text}",) if line.site else ()),
            ),
            site=line.site,
        )
    return None


RULE = Rule(
    code="ITERATOR_USED_UP",
    name="an iterator that is used up",
    rows=(60,),
    citations=("pytorch/pytorch#6179", "hushell/pmf_cvpr22#41"),
    needs=frozenset({"passes"}),
    judge=judge,
    harmless=True,
)
