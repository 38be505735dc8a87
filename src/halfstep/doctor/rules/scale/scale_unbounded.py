"""The loss scale grows without limit: gradients are near 0, or the loop raises it all the same."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import is_only_call
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.sites import Site

# 65504 / 2^40 is below the smallest fp16 number: after unscaling, every gradient would be 0.
LIMIT = 2.0**40


# In `_in_spite_of_overflow`: number of steps.
RAISED = 4

# In `_by_hand`: the largest factor by which the gradient norm may grow.
GRADIENTS = 16.0


def judge(evidence: Evidence) -> Finding | None:
    """Find a loss scale that has grown beyond any useful value for fp16 gradients."""
    return _in_spite_of_overflow(evidence) or _by_scaler(evidence) or _by_hand(evidence)


def _in_spite_of_overflow(evidence: Evidence) -> Finding | None:
    """Find a loss scale that the loop gives to the scaler, and raises after skipped steps."""
    given = [event for _, event in evidence.loop.of("update") if event.facts["given"]]
    steps = [each for each in evidence.numbers.steps if each.scale is not None]
    if not given or not all(each.skipped for each in steps[-RAISED:]):
        return None
    scales = [each.scale for each in steps if each.scale is not None]
    raised = sum(
        one.skipped and later > scale
        for one, scale, later in zip(steps, scales, scales[1:], strict=False)
    )
    if raised < RAISED:
        return None
    return Finding(
        summary=f"the loop gives scaler.update() a loss scale that has grown from {scales[0]:.3g} "
        f"to {scales[-1]:.3g} without limit: the gradients overflow, and all steps are skipped",
        facts=(
            f"{counted(evidence.numbers.skips, 'step')} were skipped",
            f"{counted(raised, 'time')}, the loss scale was raised after a skipped step",
        ),
        change=_without_argument(given[0].site),
        confidence=LIKELY,
        site=given[0].site,
    )


def _without_argument(site: Site | None) -> tuple[str, ...]:
    if site is None or not is_only_call(site.text) or ".update(" not in site.text:
        return (
            "+ # call scaler.update() without an argument: it lowers the scale after an overflow,",
            "+ # and raises it later; or give it no scale above 2.0**16",
        )
    change = "+ scaler.update()  # lowers the scale after an overflow, and raises it later"
    return (f"- {site.text}", change)


def _by_hand(evidence: Evidence) -> Finding | None:
    """Find a loss that grows without bound while the gradients of the steps do not grow."""
    steps = [
        (abs(each.loss), each.gradient_norm)
        for each in evidence.numbers.steps
        if each.scale is None and each.loss and each.gradient_norm
        if isfinite(each.loss) and isfinite(each.gradient_norm)
    ]
    if not steps:
        return None
    (loss, norm), (last_loss, last_norm) = steps[0], steps[-1]
    if last_loss < LIMIT * loss or last_norm > GRADIENTS * norm:
        return None
    return Finding(
        summary=f"the scaled loss has grown from {loss:.3g} to {last_loss:.3g}, but the "
        "optimizer's gradients have not: the loop's own loss scale grows without limit",
        facts=(f"the gradient norm was {norm:.3g} at first and {last_norm:.3g} at last",),
        change=("- scale = scale * 2", "+ scale = min(scale * 2, 2.0**24)"),
        confidence=LIKELY,
    )


def _by_scaler(evidence: Evidence) -> Finding | None:
    scales = [each.scale for each in evidence.numbers.steps if each.scale is not None]
    if not scales or scales[-1] < LIMIT or scales[-1] <= scales[0]:
        return None
    norms = [
        each.gradient_norm for each in evidence.numbers.steps if each.gradient_norm is not None
    ]
    return Finding(
        summary=f"the loss scale has grown from {scales[0]:.3g} to {scales[-1]:.3g} without limit, "
        "because the gradients are close to zero",
        facts=(f"the last gradient norm is {norms[-1]:.3g}",) if norms else (),
        change=(
            "+ # look for a loss that is divided twice, or does not depend on the parameters;",
            "+ # and cap the scale: if scaler.get_scale() > 2**24: scaler.update(2.0**24)",
        ),
        confidence=LIKELY,
    )


RULE = Rule(
    code="SCALE_UNBOUNDED",
    name="a loss scale that grows without bound",
    rows=(42,),
    citations=("pytorch/pytorch#98828",),
    needs=frozenset({"loop", "numbers"}),
    judge=judge,
    explains=("COMPUTED_INPUT_NOT_FINITE", "EPS_ABOVE_GRADIENTS", "LEARNING_RATE_TOO_HIGH"),
)
