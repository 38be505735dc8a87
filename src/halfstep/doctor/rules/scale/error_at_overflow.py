"""The loop raises an error at an overflow that the gradient scaler would skip."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.caught import Caught
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_BY_CLIPPING = "is non-finite, so it cannot be clipped"
_BY_ANOMALY = re.compile(r"Function '(\w+)' returned nan values")
_OF_VALUES = re.compile(
    r"\b(nans?|infs?|infinite|infinity|(non-?|not )?finite|overflow\w*)\b", re.IGNORECASE
)
_CHECKS = {"AssertionError", "FloatingPointError", "LinAlgError", "_LinAlgError"}


def judge(evidence: Evidence) -> Finding | None:
    """Find an error about non-finite gradients that are finite at a lower loss scale."""
    ending = evidence.ending if evidence.ending.kind else evidence.of(Caught).error
    message = ending.message
    anomaly, clipping = _BY_ANOMALY.search(message), _BY_CLIPPING in message
    own = not (anomaly or clipping)
    if own and not _is_of_gradients(evidence):
        return None
    scales = [each.scale for each in evidence.replays if each.name == "plain" and not each.finite]
    lower = [each for each in evidence.replays if each.name == "lower scale" and each.finite]
    if not scales or not lower:
        return None
    raised = (
        f"this line raises {ending.kind} when it gets gradients that are inf or NaN"
        if own
        else f"anomaly detection raises an error for {anomaly[1]}"
        if anomaly
        else "clip_grad_norm_ raises an error for gradients that are inf or NaN"
    )
    if own:
        change: tuple[str, ...] = (
            "+ # let the loop reach scaler.step(), which skips this step: before this line, check",
            "+ # whether the gradients are finite",
        )
    elif anomaly:
        change = (
            "- torch.autograd.set_detect_anomaly(True)",
            "+ # turn it on when the scale is found",
        )
    else:
        change = ("+ # clip without the argument error_if_nonfinite=True",)
    return Finding(
        summary=f"{raised}, but nothing is wrong except that the loss scale of "
        f"{scales[-1]:g} is still too high: the scaler would skip this step and halve the scale",
        facts=(f"the same step at a loss scale of {lower[-1].scale:g} is finite",),
        change=change,
        confidence=LIKELY if own else CERTAIN,
        site=ending.site,
    )


def _is_of_gradients(evidence: Evidence) -> bool:
    """Return whether an error about values ended the loop between backward() and scaler.step()."""
    ending, shapes = evidence.ending, evidence.loop.shapes
    if not (ending.kind in _CHECKS or _OF_VALUES.search(ending.message)) or not shapes:
        return False
    last = max(shapes, key=lambda each: each.last)
    return not last.complete and any(each.facts["scaled"] for each in last.of("backward"))


RULE = Rule(
    code="ERROR_AT_OVERFLOW",
    name="an exception in a step that the scaler would skip",
    rows=(44,),
    citations=("Lightning-AI/pytorch-lightning#9799", "lightly-ai/lightly-train#255"),
    needs=frozenset({"caught", "ending", "loop", "replays"}),
    judge=judge,
)
