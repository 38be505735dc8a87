"""The same weights are loaded again and again, so what was trained in between is lost."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.writes import Write, WriteLedger
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 2  # after the first time
_SHARE = 0.5  # of the parameters
_NAME = re.compile(r"[A-Za-z_]\w*")


def judge(evidence: Evidence) -> Finding | None:
    """Find a line that replaces weights by the same values between the steps of one optimizer."""
    ledger = evidence.of(WriteLedger)
    for each in ledger.lines:
        if not each.replaces or each.most < _SHARE * ledger.owned.get(each.optimizer, 0):
            continue
        if each.same < _OFTEN or each.same < each.count - 1 or each.kept < each.count - 1:
            continue
        if each.reloaded or ledger.steps.get(each.optimizer, 0) <= each.last:
            continue
        return Finding(
            summary=f"{each.count} times, the loop puts the same weights into the model between "
            "steps of one optimizer: what it has learned since the time before is lost",
            facts=(
                f"{each.most} parameters written, first after step {each.first}",
                "after each write, they have the values of the first one",
            ),
            change=_once(each)
            or ("+ # do this once, before the first step; or write copies of the latest weights",),
            confidence=LIKELY,
            site=each.site,
        )
    return None


def _once(write: Write) -> tuple[str, ...]:
    """Return a change that moves a line before the loop around it.

    It is empty without a loop, and if the line uses what the loop counts, such as each parameter.
    """
    line, loop = write.site, write.loop
    if line is None or loop is None or not loop.text.endswith(":"):
        return ()
    counted, _, _ = loop.text.removeprefix("async ").removeprefix("for ").partition(" in ")
    if loop.text.startswith("while "):
        counted = ""
    if not set(_NAME.findall(counted)).isdisjoint(_NAME.findall(line.text)):
        return ()
    return (f"@ {loop}", f"+ {line.text}", f"  {loop.text}", f"@ {line}", f"- {line.text}")


RULE = Rule(
    code="WEIGHTS_RESET",
    name="weights that are reset between steps",
    rows=(29,),
    citations=("MultimediaTechLab/YOLO#97", "flairNLP/flair#1899"),
    needs=frozenset({"writes"}),
    judge=judge,
    explains=("UPDATES_ROUNDED_AWAY", "WEIGHTS_LEFT_AFTER_EVALUATION"),
    harmless=True,
)
