"""A training changes its data in place, so that each epoch changes them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.remedies import out_of_place
from halfstep.doctor.signals.data.changed import ChangedData, DataChanges
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find views of data into which the same line writes in each epoch."""
    for each in evidence.of(DataChanges).found:
        return _of_data_set(each) if each.data else _of_loop(each)
    return None


def _of_loop(change: ChangedData) -> Finding:
    return Finding(
        summary=f"{change.by} writes into the data, not into a copy: {change.places} parts of "
        f"them were changed at least {change.times} times, and each epoch changes them again",
        facts=("a slice of a tensor shares its memory: batch = inputs[:32]",),
        change=out_of_place(change.site),
        confidence=LIKELY,
        site=change.site,
    )


def _of_data_set(change: ChangedData) -> Finding:
    compared = "" if change.copy == "clone" else " that were compared"
    samples = f"{counted(change.places, 'sample')}{compared}"
    return Finding(
        summary=f"the data set writes into its {change.data} while a loader reads it: its "
        f"{samples} were changed {change.times} times each, and each epoch changes them again",
        facts=(
            "what an index of a tensor or of a list returns shares its memory: self.data[index]",
        ),
        change=(
            f"+ # in __getitem__, copy the sample first: self.{change.data}[index].{change.copy}()",
            *((f"  {change.site.text}",) if change.site else ()),
        ),
        confidence=LIKELY,
        site=change.site,
    )


RULE = Rule(
    code="DATA_CHANGED_IN_PLACE",
    name="data that a training changes in place",
    rows=(60,),
    citations=("pytorch/vision#680",),
    needs=frozenset({"changed_data"}),
    judge=judge,
    harmless=True,
)
