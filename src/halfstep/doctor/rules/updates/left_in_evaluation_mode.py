"""A model is trained in evaluation mode, because nothing calls `train()` after an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Fact, Loop, ModelFacts, Shape

_FEWEST_STEPS = 2  # a single step may be a test of the loop


def judge(evidence: Evidence) -> Finding | None:
    """Find a model that an optimizer trains in training mode, and in evaluation mode later."""
    for number, model in enumerate(evidence.static.models):
        before = _iterations(evidence.loop, number, "train")
        optimizers = set().union(*map(_stepped, before))
        after = [
            shape
            for shape in _iterations(evidence.loop, number, "left")
            if optimizers & _stepped(shape)
        ]
        count = sum(shape.count for shape in after)
        total = count + sum(shape.count for shape in before)
        dependent = ", ".join([*model.dropouts, *model.tracking_norms])
        if count < _FEWEST_STEPS or _is_deliberate(model, before, after):
            continue
        return Finding(
            summary=f"after an evaluation, the loop trains {model.kind} in evaluation mode: "
            f"without train(), {_effect(model)}",
            facts=(
                f"{count} of {total} training steps of {model.kind} were in evaluation mode",
                f"modules that compute other results in this mode: {dependent}",
            ),
            change=("+ model.train()  # after this evaluation, before training continues",),
            confidence=LIKELY,
            site=model.left_after,
        )
    return None


def _iterations(loop: Loop, model: int, mode: str) -> list[Shape]:
    """Return the iterations with a step in which every training call of a model is in a mode."""
    found = []
    for shape in loop.shapes:
        modes = {each.facts["mode"] for each in shape.of("forward") if each.facts["model"] == model}
        if shape.complete and modes == {mode}:
            found.append(shape)
    return found


def _stepped(shape: Shape) -> set[Fact]:
    """Return the optimizers that step in an iteration."""
    return {each.facts["optimizer"] for kind in ("step", "scaler step") for each in shape.of(kind)}


def _is_deliberate(model: ModelFacts, before: list[Shape], after: list[Shape]) -> bool:
    """Return whether earlier evaluations ended in training mode, and only the last one does not."""
    is_at_the_end = max(each.last for each in after) > max(each.last for each in before)
    return model.restored > 0 and model.left == 1 and is_at_the_end


def _effect(model: ModelFacts) -> str:
    effects = []
    if model.dropouts:
        effects.append("dropout is off")
    if model.tracking_norms:
        effects.append("norms use their running statistics, which no longer change")
    return ", and ".join(effects)


RULE = Rule(
    code="LEFT_IN_EVALUATION_MODE",
    name="training in evaluation mode",
    rows=(58,),
    citations=("fartashf/vsepp#4", "wkentaro/pytorch-fcn#57"),
    needs=frozenset({"loop", "static"}),
    judge=judge,
    harmless=True,
)
