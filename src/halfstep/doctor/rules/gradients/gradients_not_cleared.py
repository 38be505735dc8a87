"""A step uses the gradients of earlier steps or closure runs, because nothing clears them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.contributions import GradientLedger, OwnStepLedger
from halfstep.doctor.record.order import optimizer_name
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Loop
    from halfstep.doctor.record.contributions import Contributions

_SHARE = 0.25  # of the backward passes; several may belong to one update
_OFTEN = 2  # a single case may be intended, at the start or end of training


def judge(evidence: Evidence) -> Finding | None:
    """Find steps whose gradients include those of an earlier step, or of an earlier closure run."""
    loop, own = evidence.loop, evidence.of(OwnStepLedger)
    if own.stale >= max(_OFTEN, _SHARE * own.steps):
        return _by_hand(own)
    for account in evidence.of(GradientLedger).optimizers:
        if account.stacked >= max(1, account.steps) * _OFTEN:
            return _in_closure(account, loop)
    for kind in ("scaler step", "step"):
        stale = [(shape, event) for shape, event in loop.of(kind) if event.facts.get("stale")]
        if sum(shape.count for shape, _ in stale) < _OFTEN:
            continue
        event = stale[0][1]
        cleared = loop.count("zero", optimizer=event.facts["optimizer"])
        scaled = kind == "scaler step"
        name = optimizer_name(loop, event.facts["optimizer"])
        return Finding(
            summary="gradients are not cleared before the next backward(): each step applies "
            "its own gradients plus those of earlier steps"
            + (
                "; the scaler divides the earlier gradients by the loss scale again"
                if scaled
                else ""
            ),
            facts=(
                f"{loop.share(event, 'stale')}, backward() added to gradients of an earlier step",
                f"gradients were cleared {counted(cleared, 'time')} in "
                f"{counted(loop.iterations, 'step')}"
                if cleared
                else "gradients were never cleared",
            ),
            change=(
                f"  {event.site.text}" if event.site else "  optimizer.step()",
                f"+ {name}.zero_grad()  # after each step, or before its first backward()",
            ),
            confidence=CERTAIN if scaled else LIKELY,
            site=event.site,
        )
    return None


def _by_hand(own: OwnStepLedger) -> Finding:
    """Return the finding for a loop that updates its weights itself."""
    return Finding(
        summary="gradients are not cleared before the next backward(): each update applies its own "
        "gradients plus those of earlier updates",
        facts=(
            (
                f"{own.stale} of {counted(own.steps, 'backward pass', 'backward passes')} added to "
                "gradients with which the loop had updated the weights"
            ),
        ),
        change=("+ each.grad = None  # for each weight, after its update; or model.zero_grad()",),
        confidence=LIKELY,
        site=own.site,
    )


def _in_closure(account: Contributions, loop: Loop) -> Finding:
    """Return the finding for a closure that keeps the gradients of its earlier runs."""
    name = next(
        (
            found[1]
            for _, event in loop.of("step")
            if event.facts["optimizer"] == account.number and event.site
            if (found := re.search(r"([\w.]+)\.step\(", event.site.text))
        ),
        "optimizer",
    )
    line = account.stacked_at
    return Finding(
        summary="the closure does not clear the gradients: a step runs it several times, and each "
        "run adds its gradients to those of the runs before",
        facts=(
            (
                f"in {counted(account.steps, 'step')}, {account.stacked} of {account.backwards} "
                "backward passes added to the gradients of an earlier run of the closure"
            ),
        ),
        change=(
            f"+ {name}.zero_grad()  # inside the closure, in each run",
            f"  {line.text if line else 'loss.backward()'}",
        ),
        confidence=LIKELY,
        site=line,
    )


RULE = Rule(
    code="GRADIENTS_NOT_CLEARED",
    name="gradients that are not cleared",
    rows=(58,),
    citations=("docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad",),
    needs=frozenset({"contributions", "loop", "own steps"}),
    judge=judge,
    explains=(
        *("ACTIVATIONS_TOO_LARGE", "INPUT_LOST", "LEARNING_RATE_TOO_HIGH", "NOT_FINITE"),
        "SCALE_COLLAPSED",
    ),
)
