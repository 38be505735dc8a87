"""A loop resumes an optimizer whose rate a scheduler had moved, and begins the schedule again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.rates import LearningRates
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a scheduler without a loaded state, of an optimizer with one."""
    ledger = evidence.of(LearningRates)
    for each in ledger.schedules:
        rates = ledger.of(each.optimizer)
        if not (each.after_resume and each.moves) or each.restored:
            continue
        line = each.made.text if each.made else "scheduler = ..."
        return Finding(
            summary=f"the optimizer was resumed at a learning rate of {rates.rate:.3g}, which a "
            f"scheduler had moved, but {each.kind} starts at its beginning again",
            facts=(
                f"{each.kind} moved {each.moves} times after the state of the optimizer was loaded",
                "no state was loaded into it",
            ),
            change=(
                f"  {line}",
                "+ scheduler.load_state_dict(checkpoint['scheduler'])  # and save it, too",
            ),
            confidence=LIKELY,
            site=each.made,
        )
    return None


RULE = Rule(
    code="SCHEDULE_RESTARTED",
    name="a schedule that begins again after a resume",
    rows=(59,),
    citations=("KaiyangZhou/deep-person-reid#270", "DeepLabCut/DeepLabCut#2788"),
    needs=frozenset({"rates"}),
    judge=judge,
    harmless=True,
)
