"""Weights are replaced for an evaluation, for example by an average, and are not put back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.remedies import copied_state
from halfstep.doctor.signals.ledgers.writes import Write, WriteLedger
from halfstep.doctor.signals.program.own_states import OwnState, OwnStates
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 2  # if the new values are no average
_ALWAYS = 0.9  # of the writes
_SHARE = 0.5  # of the parameters


def judge(evidence: Evidence) -> Finding | None:
    """Find a line that replaces weights before evaluations, while training goes on from them."""
    ledger = evidence.of(WriteLedger)
    for each in ledger.lines:
        after = ledger.steps.get(each.optimizer, 0) - each.last
        if not each.replaces or each.most < _SHARE * ledger.owned.get(each.optimizer, 0):
            continue
        if not after or each.evaluated < (1 if each.averaged else _OFTEN):
            continue
        if each.evaluated < _ALWAYS * each.count or each.same:
            continue
        return _finding(each, next(iter(evidence.of(OwnStates).loads), None))
    return None


def _finding(write: Write, kept: OwnState | None) -> Finding:
    what = "an average of the weights" if write.averaged else "other weights"
    line = write.site.text if write.site else "model.load_state_dict(average)"
    return Finding(
        summary=f"{counted(write.evaluated, 'time')}, the loop puts {what} into the model for an "
        "evaluation, and does not put the trained weights back: training goes on from there",
        facts=(
            f"{counted(write.most, 'parameter')} written, first after step {write.first}",
            "the next step of the optimizer used other values than those before the write",
            *([f"the state that {kept.site} loads was kept without a copy"] if kept else []),
        ),
        change=copied_state(kept.kept_by)
        if kept
        else (
            "+ kept = [each.detach().clone() for each in model.parameters()]",
            f"  {line}",
            "+ # after the evaluation; state_dict() alone would keep references, not copies:",
            "+ torch._foreach_copy_([each.data for each in model.parameters()], kept)",
        ),
        confidence=LIKELY,
        site=write.site,
    )


RULE = Rule(
    code="WEIGHTS_LEFT_AFTER_EVALUATION",
    name="weights of an evaluation that stay for training",
    rows=(29,),
    citations=("aqlaboratory/openfold#90", "PKU-YuanGroup/Open-Sora-Plan#186"),
    needs=frozenset({"own_states", "writes"}),
    judge=judge,
    explains=("STATE_KEPT_BY_REFERENCE",),
    harmless=True,
)
