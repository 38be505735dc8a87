"""Predictions and labels are collected in two passes over a loader that shuffles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.passes import PassLedger
from halfstep.doctor.remedies import with_loader_argument
from halfstep.doctor.verdict import POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find evaluations beside which the same loader is read again in another order."""
    for each in evidence.of(PassLedger).unmatched:
        return Finding(
            summary="one pass over a loader calls the model, another one beside it only reads the "
            "batches, and the loader shuffles: labels of the second pass do not fit the "
            "predictions of the first",
            facts=(
                f"{counted(each.count, 'time')}, these passes had different orders",
                *((f"the model is called in: {each.evaluated.text}",) if each.evaluated else ()),
            ),
            change=with_loader_argument(each.made, each.made_by, "shuffle", value=False)
            or (
                (
                    "+ # collect predictions and labels in the same pass, or make the loader with "
                    "shuffle=False"
                ),
                *((f"  {each.site.text}",) if each.site else ()),
            ),
            confidence=POSSIBLE,
            site=each.site,
        )
    return None


RULE = Rule(
    code="LABELS_OF_ANOTHER_PASS",
    name="labels of another pass than the predictions",
    rows=(60,),
    citations=("skorch-dev/skorch#499", "danielegrattarola/spektral#440"),
    needs=frozenset({"passes"}),
    judge=judge,
    harmless=True,
)
