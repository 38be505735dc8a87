"""A module changes its weights when its mode is set, and does not undo it: the changes add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.mode_writes import ModeWrite, ModeWrites
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 2


def judge(evidence: Evidence) -> Finding | None:
    """Find a module that each evaluation changes again, while training goes on from there."""
    for each in evidence.of(ModeWrites).modules:
        if each.left >= _OFTEN and each.adds_up is not False:
            return _finding(each)
    return None


def _finding(write: ModeWrite) -> Finding:
    line = write.site.text if write.site else ""
    owner = write.owner
    if write.again:
        return _again(write, line)
    return Finding(
        summary=f"{write.kind}.{write.name}() changes weights when the mode is set, and the other "
        "mode does not undo it: each evaluation changes them again, and training goes on from "
        "there",
        facts=(
            (
                f"evaluation mode was set between steps {counted(write.rounds, 'time')}; "
                f"{counted(write.left, 'time')}, the next step began with other weights"
            ),
            *(
                ["a copy of the module, switched twice without training, changed both times"]
                if write.adds_up
                else []
            ),
        ),
        change=(
            "+ # change weights once, and undo it: when evaluation begins, keep them before",
            f"+ {owner}.kept = [each.detach().clone() for each in {owner}.parameters()]",
            f"  {line}",
            "+ # and when training begins again, put them back:",
            f"+ torch._foreach_copy_([each.data for each in {owner}.parameters()], {owner}.kept)",
        ),
        confidence=LIKELY if write.adds_up else POSSIBLE,
        site=write.site,
    )


def _again(write: ModeWrite, line: str) -> Finding:
    return Finding(
        summary=f"{write.kind}.{write.name}() changes weights also if the mode stays the same: "
        "each call of train() changes them again, and training goes on from there",
        facts=(
            (
                "train() was called in training mode between steps "
                f"{counted(write.rounds, 'time')}; {counted(write.left, 'time')}, the next step "
                "began with other weights"
            ),
            *(["a copy of the module changed in each call of train()"] if write.adds_up else []),
        ),
        change=(
            f"+ # change weights only if the new mode is not that of {write.owner}.training",
            f"  {line}",
        ),
        confidence=LIKELY if write.adds_up else POSSIBLE,
        site=write.site,
    )


RULE = Rule(
    code="WEIGHTS_CHANGED_BY_MODE",
    name="weights that change each time the mode is set",
    rows=(58,),
    citations=("jingyaogong/minimind#598", "Lightning-AI/litgpt#296"),
    needs=frozenset({"mode writes"}),
    judge=judge,
    explains=("UPDATES_ROUNDED_AWAY",),
    harmless=True,
)
