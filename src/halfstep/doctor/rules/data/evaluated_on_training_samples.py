"""A model is evaluated on a part of the data that it also trains on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.passes import PassLedger
from halfstep.doctor.signals.data.indexing import RowLedger
from halfstep.doctor.signals.data.pairs import PairLedger
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find parts of the data for an evaluation whose samples are in the training, too."""
    for each in (
        *evidence.of(PassLedger).overlaps,
        *evidence.of(RowLedger).overlaps,
        *evidence.of(PairLedger).overlaps,
    ):
        is_part = each.both < each.evaluated
        return Finding(
            summary=f"{each.both} of {each.evaluated} samples of the evaluation are among the "
            f"{each.trained} samples of the training, so the evaluation does not show how the "
            "model does on new data",
            facts=(
                "both are parts of the same data"
                if is_part
                else "the evaluation has a part of the data, and the training has all of it",
            ),
            change=(
                "+ # train on the other part only: train_set, test_set = random_split(data, ...)",
                *((f"  {each.site.text}",) if each.site else ()),
            ),
            confidence=LIKELY if is_part else POSSIBLE,
            site=each.site,
        )
    return None


RULE = Rule(
    code="EVALUATED_ON_TRAINING_SAMPLES",
    name="an evaluation on samples of the training",
    rows=(60,),
    citations=("ratschlab/aestetik#8", "marin-community/marin#2700"),
    needs=frozenset({"indexing", "pairs", "passes"}),
    judge=judge,
    harmless=True,
)
