"""`optimizer.step()` is called in addition to `scaler.step(optimizer)`, or instead of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Shape

_STATES = {
    "scaled": "the gradients were still multiplied by the loss scale",
    "unscaled": "the gradients had already been unscaled",
}


def judge(evidence: Evidence) -> Finding | None:
    """Find a step outside `scaler.step()` on gradients of a scaled loss."""
    for shape, event in evidence.loop.of("step"):
        if event.facts["by_scaler"] or event.facts["gradients"] not in _STATES:
            continue
        before = event.facts["gradients"] == "scaled"
        if (
            not before
            and not event.facts["again"]
            and not any(each.facts["skipped"] for each in shape.of("scaler step"))
        ):
            if shape.of("scaler step") or _skips_by_itself(evidence, shape):
                continue
            summary = (
                "the gradients are unscaled, but the loop calls optimizer.step() itself: "
                "steps with inf or NaN are not skipped"
            )
        elif before:
            summary = (
                "optimizer.step() applies gradients that are still multiplied by the loss scale"
            )
        elif not any(
            each.facts["optimizer"] == event.facts["optimizer"] for each in shape.of("scaler step")
        ):
            summary = (
                "the gradients are unscaled, but the loop calls optimizer.step() itself: "
                "it also applies inf or NaN, for which the scaler skips the step of another "
                "optimizer"
            )
        else:
            summary = (
                "optimizer.step() applies the same gradients a second time, after scaler.step(), "
                "even if they are inf or NaN and the scaler skipped them"
            )
        doubled = any(
            each.facts["optimizer"] == event.facts["optimizer"] for each in shape.of("scaler step")
        )
        change = ("- optimizer.step()",)
        return Finding(
            summary=summary,
            facts=(
                (
                    f"{evidence.loop.share(event, 'by_scaler', 'gradients')}, optimizer.step() "
                    "was called outside scaler.step()"
                ),
                f"{_STATES[event.facts['gradients']]} when it was called",
            ),
            change=change
            if doubled
            else (*change, "+ scaler.step(optimizer)", "+ scaler.update()"),
            site=event.site,
        )
    return None


def _skips_by_itself(evidence: Evidence, shape: Shape) -> bool:
    """Return whether the loop unscales the gradients, and has applied no inf or NaN."""
    bad = evidence.numbers.first_bad
    return bool(shape.of("divide")) and (bad is None or bad.skipped)


RULE = Rule(
    code="STEP_BYPASSES_SCALER",
    name="a step bypassing the gradient scaler",
    rows=(1,),
    citations=("IAHispano/Applio#860",),
    needs=frozenset({"loop", "numbers"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH", "CLIPPED_BY_INFINITE_NORM"),
)
