"""A hook changes the weights themselves in the backward pass, as if they were their gradients.

`register_post_accumulate_grad_hook` gives its function the parameter; the gradient is its `.grad`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.hook_writes import (
    GIVES_PARAMETER,
    BackwardWrite,
    BackwardWrites,
)
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 2  # examined backward passes


def judge(evidence: Evidence) -> Finding | None:
    """Find a hook that writes parameters which an optimizer updates after the backward pass."""
    hooks = sorted(evidence.of(BackwardWrites).hooks, key=lambda each: -each.changed)
    for each in hooks:
        if each.changed >= _OFTEN:
            return _finding(each)
        if each.by == GIVES_PARAMETER and each.site is not None and each.touched >= _OFTEN:
            return _finding(each)
    return None


def _finding(hook: BackwardWrite) -> Finding:
    does = "changes" if hook.changed >= _OFTEN else "writes"
    gets = (
        f": {hook.by}() gives a hook the parameter, whose gradient is its .grad"
        if hook.by == GIVES_PARAMETER
        else ""
    )
    return Finding(
        summary=f"a hook {does} the weights in the backward pass, before the optimizer updates "
        f"them{gets}",
        facts=(
            (
                f"in {hook.changed} of {counted(hook.passes, 'examined call')}, the weights had "
                "other values after the hook, and no optimizer had made a step in it"
            ),
            *([f"the hook is registered at {hook.registered}"] if hook.registered else []),
        ),
        change=hook.change
        or (
            "+ # in the hook, change the gradient: param.grad in a hook that gets a parameter;",
            "+ # change weights after optimizer.step()",
        ),
        confidence=LIKELY if hook.changed >= _OFTEN else POSSIBLE,
        site=hook.site or hook.registered,
    )


RULE = Rule(
    code="WEIGHTS_WRITTEN_IN_BACKWARD",
    name="a hook that changes weights in place of gradients",
    rows=(29,),
    citations=("pytorch/pytorch#187268", "huggingface/picotron#39"),
    needs=frozenset({"backward writes"}),
    judge=judge,
    explains=("UPDATES_ROUNDED_AWAY",),
    harmless=True,
)
