"""All samples have the same inputs, or the data set gives all of them the same target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.data.constant import Constants
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find inputs or targets that do not depend on the sample."""
    for each in evidence.of(Constants).found:
        other = "targets" if each.what == "inputs" else "inputs"
        value = "" if each.value is None else f": each element is {each.value:.3g}"
        what = f"all samples have the same {each.what}{value}"
        if each.part:
            what = "one of the inputs of the model is 0 for all samples"
        return Finding(
            summary=f"{what}. The model cannot learn from "
            f"{'it' if each.part else 'them'} what makes the {other} differ",
            facts=(
                f"{each.rows} samples of {each.calls} batches were compared",
                f"their {other} have {each.different} different values",
            ),
            change=(
                (
                    f"+ # look at the {each.what} of one batch: an index that does not change, or "
                    "a cast that rounds them away"
                ),
                *((f"  {each.site.text}",) if each.site else ()),
            ),
            confidence=POSSIBLE if each.part else LIKELY,
            site=each.site,
        )
    return None


RULE = Rule(
    code="SAME_FOR_ALL_SAMPLES",
    name="inputs or targets that are the same for all samples",
    rows=(60,),
    citations=("keras-team/keras#255",),
    needs=frozenset({"constants"}),
    judge=judge,
    harmless=True,
)
