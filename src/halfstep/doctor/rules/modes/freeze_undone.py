"""Norms that the loop puts into evaluation mode run in training mode, as a later call undoes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.switches import ModeLedger
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find frozen norms that were in evaluation mode in no training call."""
    for model in evidence.of(ModeLedger).models:
        undone = [
            each
            for each in model.layers
            if each.undone and each.frozen and each.training and not each.evaluating
        ]
        if not undone:
            continue
        site = undone[0].undone
        return Finding(
            summary=f"the loop puts {counted(len(undone), 'norm')} of {model.kind} into evaluation "
            "mode, but a later train() of the whole model puts them back into training mode, "
            "before the first training call",
            facts=(
                (
                    f"{counted(undone[0].training, 'training call')} in training mode: "
                    f"{', '.join(each.name or each.kind for each in undone[:3])}"
                ),
                "their parameters require no gradients",
            ),
            change=(
                "  model.train()",
                f"+ {site.text if site else 'norm.eval()'}  # again, after each train()",
            ),
            confidence=LIKELY,
            site=site,
        )
    return None


RULE = Rule(
    code="FREEZE_UNDONE",
    name="frozen norms in training mode",
    rows=(58,),
    citations=("facebookresearch/maskrcnn-benchmark#785",),
    needs=frozenset({"modes"}),
    judge=judge,
    harmless=True,
)
