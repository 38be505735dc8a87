"""Each worker of a loader gives all samples of an iterable data set, so each sample comes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.data.batches import BatchLedger
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find loaders whose samples come once from each worker."""
    for each in evidence.of(BatchLedger).repeated:
        return Finding(
            summary=f"each of the {each.workers} workers goes over the whole {each.data}: a pass "
            f"has {each.samples} samples, and only {each.different} different ones",
            facts=("a worker of an iterable data set has a copy of its own",),
            change=(
                (
                    f"+ # in __iter__ of {each.data}, give each worker its part: "
                    "info = torch.utils.data.get_worker_info(), then samples[info.id :: "
                    "info.num_workers]"
                ),
                *((f"  {each.site.text}",) if each.site else ()),
            ),
            site=each.site,
        )
    return None


RULE = Rule(
    code="SAMPLES_REPEATED_BY_WORKERS",
    name="samples that each worker of a loader gives",
    rows=(60,),
    citations=("huggingface/datasets#3423", "vahidk/tfrecord#78", "espnet/espnet#2081"),
    needs=frozenset({"batches"}),
    judge=judge,
    harmless=True,
)
