"""A model is trained in evaluation mode, because nothing calls `train()` after an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.loop import Event, Shape

_OFTEN = 2  # a single step may be intended


def judge(evidence: Evidence) -> Finding | None:
    """Find a model that stays in evaluation mode from the first evaluation on."""
    evaluated = evidence.evaluation.first
    if evaluated is None:
        return None
    for number, model in enumerate(evidence.static.models):
        calls = _calls(evidence.loop.of("forward"), number)
        before = [shape for shape, event in calls if event.facts["training"]]
        after = [(shape, event) for shape, event in calls if not event.facts["training"]]
        if not (model.modal and before and after):
            continue
        first = min(shape.first for shape, _ in after)
        # Evaluations before an iteration's first event count as a part of the previous iteration.
        is_since_evaluation = max(each.last for each in before) < first and first - evaluated <= 1
        count = sum(shape.count for shape, _ in after)
        if not is_since_evaluation or count < _OFTEN:
            continue
        site = after[0][1].site
        return Finding(
            summary="the model is still in evaluation mode when training continues after an "
            f"evaluation: without model.train(), {_effect(model.modal)}",
            facts=(
                f"the last {count} of {evidence.loop.iterations} steps were in evaluation mode",
                f"modules that compute something else in this mode: {', '.join(model.modal)}",
            ),
            change=("+ model.train()  # after each evaluation, before training continues",),
            confidence=LIKELY,
            site=site,
        )
    return None


def _calls(calls: list[tuple[Shape, Event]], number: int) -> list[tuple[Shape, Event]]:
    """Return the last call of a model in each iteration with a step."""
    mine = [(shape, event) for shape, event in calls if event.facts["model"] == number]
    last = {id(shape): (shape, event) for shape, event in mine if shape.complete}
    return list(last.values())


def _effect(modal: tuple[str, ...]) -> str:
    effects = []
    if any("Dropout" in each for each in modal):
        effects.append("dropout is off")
    if any("Dropout" not in each for each in modal):
        effects.append("norms use their running statistics, which no longer change")
    return ", and ".join(effects)


RULE = Rule(
    code="LEFT_IN_EVALUATION_MODE",
    name="training in evaluation mode",
    rows=(58,),
    citations=("fartashf/vsepp#4", "wkentaro/pytorch-fcn#57"),
    needs=frozenset({"loop", "static", "evaluation"}),
    judge=judge,
    harmless=True,
)
