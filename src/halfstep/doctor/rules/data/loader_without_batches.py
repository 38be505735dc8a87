"""A loader has no batch: its data set is smaller than a batch, and drop_last drops the only one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.passes import PassLedger
from halfstep.doctor.remedies import with_loader_argument
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find loaders over some samples that have no batch."""
    for each in evidence.of(PassLedger).empty:
        return Finding(
            summary=f"a loader over {each.samples} samples has no batch: batches have {each.size} "
            "samples, and drop_last=True drops a smaller one",
            facts=("the loop over this loader never runs",),
            change=with_loader_argument(each.made, each.made_by, "drop_last", value=False)
            or (
                "+ # make the loader with drop_last=False, or with a smaller batch_size",
                *((f"  {each.site.text}",) if each.site else ()),
            ),
            site=each.made or each.site,
        )
    return None


RULE = Rule(
    code="LOADER_WITHOUT_BATCHES",
    name="a loader without a batch",
    rows=(60,),
    citations=("RasmussenLab/vamb#425", "facebookresearch/sscd-copy-detection#9"),
    needs=frozenset({"passes"}),
    judge=judge,
    harmless=True,
)
