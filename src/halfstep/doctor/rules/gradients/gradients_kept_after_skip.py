"""A loop leaves out a step because of its gradients or its loss, and keeps its gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.contributions import Contributions, GradientLedger
from halfstep.doctor.record.order import optimizer_name
from halfstep.doctor.record.source import is_only_call
from halfstep.doctor.signals.ledgers.left_out import LeftOutLedger
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 4  # backward passes without a step
_LONG = 3  # windows of the usual length
_LONG_IF_FINITE = 8  # a program may end with other work on gradients
_OFTEN = 2
_NEARLY_ALL = 0.75  # of the backward passes without a step; a spike may have a usual loss


def judge(evidence: Evidence) -> Finding | None:
    """Find gradients of steps that are left out, and that later steps use or never use."""
    return _for_all_later_steps(evidence) or _for_the_next_step(evidence)


def _for_all_later_steps(evidence: Evidence) -> Finding | None:
    """Find gradients that grow to the end of the program, without a step or a clearing."""
    for account in evidence.of(GradientLedger).optimizers:
        long = _LONG if not account.finite else _LONG_IF_FINITE
        if not account.usual or account.waiting < max(_FEWEST, long * account.usual):
            continue
        if not account.same_line or evidence.loop.discarded.count:
            continue
        if account.finite and not (_decides(evidence, account) or _bounds(evidence, account)):
            continue
        name = optimizer_name(evidence.loop, account.number)
        what = "inf or NaN in them stays there" if not account.finite else "they only grow"
        born = [each for each in evidence.births if each.culprit]
        return Finding(
            summary=f"after step {account.since}, the loop makes no step any more: it leaves one "
            f"out because of its gradients, and does not clear them, so {what}, and each later "
            "step is left out, too",
            facts=(
                f"{account.waiting} backward passes have added to these gradients since then",
                f"a step used {account.usual} before",
                *(f"the first {each.value} came from {each.op}, {each.where}" for each in born[:1]),
            ),
            change=_change(account, name),
            confidence=CERTAIN if not account.finite else LIKELY,
            site=account.zero or account.step,
        )
    return None


def _for_the_next_step(evidence: Evidence) -> Finding | None:
    """Find steps that use, beside their own gradients, those of batches with a high loss."""
    accounts = {each.number: each for each in evidence.of(GradientLedger).optimizers}
    for found in evidence.of(LeftOutLedger).optimizers:
        account = accounts.get(found.number)
        if account is None or found.passes < _OFTEN or not found.high:
            continue
        if found.high < _NEARLY_ALL * found.compared:
            continue
        name = optimizer_name(evidence.loop, account.number)
        return Finding(
            summary=f"the loop leaves out the step of a batch with a high {found.what}, and does "
            "not clear its gradients, so the next step uses them, too",
            facts=(
                (
                    f"{counted(found.passes, 'backward pass', 'backward passes')} had neither a "
                    f"step nor a clearing; {counted(found.steps, 'later step')} used the gradients"
                ),
                (
                    f"the {found.what} of {found.high} of {found.compared} was above those "
                    f"just before, such as {found.value:.4g} after at most {found.before:.4g}"
                ),
            ),
            change=_change(account, name),
            confidence=LIKELY,
            site=account.zero or account.step,
        )
    return None


def _change(account: Contributions, name: str) -> tuple[str, ...]:
    """Return a change that clears the gradients before each backward; in words for several."""
    zero, line = account.zero, account.backward
    if zero and line and account.usual == 1 and is_only_call(zero.text):
        return (f"@ {line}", f"+ {zero.text}", f"  {line.text}", f"@ {zero}", f"- {zero.text}")
    return (
        *((f"- {account.zero.text}",) if account.zero else ()),
        "+ # for each batch, also if the step is left out:",
        f"+ {name}.zero_grad()",
    )


def _decides(evidence: Evidence, account: Contributions) -> bool:
    """Return whether the loop looks at the gradients that wait, as it does to leave out a step."""
    last = evidence.loop.shapes[-1]
    looks = {
        (event.kind, event.site)
        for event in last.events
        if event.kind in {"read", "zero"} and event.facts.get("optimizer") == account.number
    }
    return not last.complete and bool(looks)


def _bounds(evidence: Evidence, account: Contributions) -> bool:
    """Return whether the loop leaves out each step whose gradient norm is above those of others."""
    return any(
        each.number == account.number and each.what != "loss" and each.high == each.compared > 0
        for each in evidence.of(LeftOutLedger).optimizers
    )


RULE = Rule(
    code="GRADIENTS_KEPT_AFTER_SKIP",
    name="gradients that are kept after a step that is left out",
    rows=(58,),
    citations=("espnet/espnet#3283",),
    needs=frozenset({"births", "contributions", "left_out", "loop"}),
    judge=judge,
    explains=(
        *("CORRUPT_BATCH", "DIVISION_BY_ZERO", "LEARNING_RATE_TOO_HIGH", "LOG_OF_ZERO"),
        *("NORM_STATISTICS_POISONED", "NOTHING_TO_AVERAGE", "NOT_FINITE", "OUTSIDE_DOMAIN"),
        "CLIPPED_BY_INFINITE_NORM",
    ),
)
