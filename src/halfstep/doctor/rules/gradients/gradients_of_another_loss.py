"""A step also uses gradients that a backward made for another optimizer, or for an attack."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.doctor.record.contributions import GradientLedger
from halfstep.doctor.record.order import optimizer_name
from halfstep.doctor.signals.movement.adversaries import Agreements
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.contributions import Contributions, Foreign

_OFTEN = 2
_SHARE = 0.5  # of the steps
_ATTACK = 2  # passes per step; a single one may be a loss of the clean inputs


def judge(evidence: Evidence) -> Finding | None:
    """Find contributions for something else that are not cleared before the optimizer's own."""
    one_way = evidence.of(Agreements).one_way
    for account in evidence.of(GradientLedger).optimizers:
        for foreign in account.foreign:
            if foreign.steps < max(_OFTEN, _SHARE * account.steps):
                continue
            if foreign.user is None and foreign.passes < _ATTACK * foreign.steps:
                continue
            return _finding(evidence, account, foreign)
        for each in account.joint:
            # Two networks may share a loss. One that scores the other's samples must not be moved
            # to give them what the other wants.
            if (account.number, each.user) in one_way and each.steps >= _SHARE * account.steps:
                found = _finding(evidence, account, each)
                other = optimizer_name(evidence.loop, each.user or 0)
                return replace(found, change=_for_other_alone(each, other) or found.change)
    return None


def _for_other_alone(joint: Foreign, other: str) -> tuple[str, ...]:
    """Return the backward with the parameters of its own optimizer only, whatever the order."""
    line = joint.site.text if joint.site else ""
    mine = f'inputs=[each for group in {other}.param_groups for each in group["params"]]'
    changed = line.replace(".backward()", f".backward({mine})")
    return () if changed == line else (f"- {line}", f"+ {changed}")


def _finding(evidence: Evidence, account: Contributions, foreign: Foreign) -> Finding:
    kind = evidence.static.optimizers[account.number].kind
    name = optimizer_name(evidence.loop, account.number)
    known = name if name != "optimizer" else f"optimizer {account.number} ({kind})"
    if foreign.user is None:
        made = "for the gradients of an input"
    else:
        other = optimizer_name(evidence.loop, foreign.user)
        made = f"for {other if other not in {name, 'optimizer'} else f'optimizer {foreign.user}'}"
    where = f" at {foreign.site}" if foreign.site else ""
    passes = counted(foreign.passes, "backward pass", "backward passes")
    return Finding(
        summary=f"the backward(){where} was made {made}, but it also fills the gradients of "
        f"{known}, and its next step applies them, because nothing clears them before "
        "that",
        facts=(
            (
                f"{foreign.steps} of {counted(account.steps, 'step')} of {known} used {passes} "
                f"made {made}"
            ),
        ),
        change=(
            f"+ {name}.zero_grad()  # directly before its own backward(), once per step",
            f"  {foreign.before.text if foreign.before else 'loss.backward()'}",
        ),
        confidence=LIKELY,
        site=foreign.before,
    )


RULE = Rule(
    code="GRADIENTS_OF_ANOTHER_LOSS",
    name="gradients of another loss in a step",
    rows=(58,),
    citations=("Lightning-AI/pytorch-lightning#557", "FoundationVision/OmniTokenizer#15"),
    needs=frozenset({"adversaries", "contributions", "loop", "static"}),
    judge=judge,
    harmless=True,
)
