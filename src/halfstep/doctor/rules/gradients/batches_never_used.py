"""The last accumulation window of an epoch is cleared, and always has the same batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.contributions import GradientLedger
from halfstep.doctor.record.order import optimizer_name
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 2
_SHARE = 0.02  # of the backward passes


def judge(evidence: Evidence) -> Finding | None:
    """Find batches whose gradients are cleared each time, before a step uses them."""
    for account in evidence.of(GradientLedger).optimizers:
        if account.dropped < _OFTEN or not account.unseen:
            continue
        share = account.lost / account.backwards
        if share < _SHARE:
            continue
        name = optimizer_name(evidence.loop, account.number)
        ordered = _OFTEN * account.unseen <= account.lost
        unused = counted(account.unseen, "batch", "batches")
        step = account.step
        return Finding(
            summary=f"a step needs {account.usual} backward passes, and those that are left at the "
            "end of an epoch are cleared: the model never learns from "
            + (f"the same {unused}" if ordered else "the samples in them"),
            facts=(
                (
                    f"{account.lost} of {account.backwards} backward passes ({share:.0%}) ended in "
                    "no step"
                ),
                (
                    f"{counted(account.dropped, 'incomplete window')} had "
                    + (
                        "no other batches, because the batches come in the same order in each epoch"
                        if ordered
                        else "samples that came again in others of them, and that no step has used"
                    )
                ),
            ),
            change=(
                (
                    "+ # step at the end of an epoch, too: with `or number + 1 == len(loader)` in "
                    "the condition of the step"
                ),
                f"  {step.text if step else f'{name}.step()'}",
            ),
            confidence=LIKELY,
            site=step,
        )
    return None


RULE = Rule(
    code="BATCHES_NEVER_USED",
    name="batches that never reach a step",
    rows=(58,),
    citations=("timoschick/pet#36", "tomhosking/torchseq#8"),
    needs=frozenset({"contributions", "loop"}),
    judge=judge,
    harmless=True,
)
