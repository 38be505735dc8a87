"""A loader has no batch: drop_last drops the only one, or the batch sampler makes none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.passes import PassLedger
from halfstep.doctor.remedies import with_loader_argument
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find loaders over some samples that have no batch."""
    for each in evidence.of(PassLedger).empty:
        if each.samples < each.size:
            why = f"batches have {each.size} samples, and drop_last=True drops a smaller one"
            change = with_loader_argument(each.made, each.made_by, "drop_last", value=False)
            advice = "drop_last=False, or with a smaller batch_size"
        else:
            why, change = "its sampler gave no index in any pass", ()
            advice = "a sampler that gives the samples, also if they are few"
        return Finding(
            summary=f"a loader over {each.samples} samples has no batch: {why}",
            facts=(f"in {counted(each.passes, 'pass', 'passes')}, the loop over it never runs",),
            change=change
            or (
                f"+ # make the loader with {advice}",
                *((f"  {each.site.text}",) if each.site else ()),
            ),
            confidence=CERTAIN if each.samples < each.size else LIKELY,
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
