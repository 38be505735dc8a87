"""A model is trained in evaluation mode, because nothing calls `train()` after an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.switches import ModeLedger, ModelModes
from halfstep.doctor.signals.program.names import UserNames
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.doctor.record import Evidence, Fact, Loop, Shape

_FEWEST_STEPS = 2  # a single step may be a test of the loop
_SHARE = (
    0.5  # of the training calls; a model that is seldom evaluated may be in this mode on purpose
)


def judge(evidence: Evidence) -> Finding | None:
    """Find a model that is trained in training mode, and in evaluation mode later."""
    names = evidence.of(UserNames)
    for model in evidence.of(ModeLedger).models:
        number = model.number
        before = _iterations(evidence.loop, number, "train")
        after = _iterations(evidence.loop, number, "left")
        count = sum(shape.count for shape in after)
        if count < _FEWEST_STEPS or not before or _is_deliberate(model, before, after):
            continue
        first = min(shape.first for shape in after)
        # Another model can be trained through this one, which is in evaluation mode on purpose.
        trained = _stepped(each for each in evidence.loop.shapes if each.last >= first)
        owners = trained.intersection(evidence.static.models[number].optimizers)
        if not owners:
            continue
        total = count + sum(shape.count for shape in before)
        dependent = ", ".join([*model.dropouts, *model.norms])
        return Finding(
            summary=f"after an evaluation, the loop trains {names.title(number, model.kind)} in "
            f"evaluation mode: without train(), {_effect(model)}",
            facts=(
                f"{count} of {total} training steps of {model.kind} were in evaluation mode",
                f"modules that compute other results in this mode: {dependent}",
            ),
            change=names.back_to_training(number, whole=_is_inside(model)),
            # A new optimizer can begin a phase that is in evaluation mode on purpose.
            confidence=LIKELY
            if owners & _stepped(each for each in evidence.loop.shapes if each.first < first)
            else POSSIBLE,
            site=model.left_after,
        )
    return _never_in_training_mode(evidence) or _left_in_part(evidence)


def _never_in_training_mode(evidence: Evidence) -> Finding | None:
    """Find a model whose training calls follow evaluations and are all in evaluation mode.

    The mode is that of the evaluations if most of the training calls come after one, for example
    if a teacher in evaluation mode is the same object as the model, or if the loop sets the mode
    for each evaluation, and for nothing else. If the loop only evaluates the model before it
    trains it, norms may keep their statistics on purpose, but dropout that never acts has no use.
    """
    names = evidence.of(UserNames)
    for model in evidence.of(ModeLedger).models:
        owners = evidence.static.models[model.number].optimizers
        if _iterations(evidence.loop, model.number, "train"):
            continue
        often = model.straight >= max(_FEWEST_STEPS, _SHARE * model.evaluating)
        often |= model.switched >= _FEWEST_STEPS
        once = bool(model.begins and model.dropouts) and not model.norms
        if not (often or (once and model.evaluating >= _FEWEST_STEPS)):
            continue
        if not _stepped(evidence.loop.shapes).intersection(owners):
            continue
        dependent = ", ".join([*model.dropouts, *model.norms])
        return Finding(
            summary=f"the loop trains {names.title(model.number, model.kind)} in evaluation mode, "
            f"in which it evaluates the same model before: without train(), {_effect(model)}",
            facts=(
                f"{model.evaluating} training calls were in evaluation mode",
                f"{model.straight} of them came straight after an evaluation",
                f"modules that compute other results in this mode: {dependent}",
                *_apart(names.of(model.number).apart),
            ),
            change=names.back_to_training(model.number, whole=_is_inside(model)),
            confidence=LIKELY if often else POSSIBLE,
            site=model.straight_after,
        )
    return None


def _left_in_part(evidence: Evidence) -> Finding | None:
    """Find layers that drop values, and that stay in evaluation mode where others do not.

    Norms may stay in this mode on purpose, with the statistics that they have.
    """
    user = evidence.of(UserNames)
    for model in evidence.of(ModeLedger).models:
        left = [
            each
            for each in model.layers
            if each.drops
            and each.evaluating >= _FEWEST_STEPS
            and ((each.left and each.evaluated) or (not each.training and each.trained))
        ]
        others = [each for each in model.layers if each.training and not each.left]
        if left and not left[0].training:  # Norms may be in either mode on purpose.
            others = [each for each in others if each.drops]
        owners = evidence.static.models[model.number].optimizers
        if not left or not others or not _stepped(evidence.loop.shapes).intersection(owners):
            continue
        names = ", ".join(each.name or each.kind for each in left[:3])
        return Finding(
            summary=f"{counted(len(left), 'layer')} of {user.title(model.number, model.kind)} "
            f"{'is' if len(left) == 1 else 'are'} in evaluation mode "
            f"{'after an evaluation' if left[0].training else 'from the first step on'}, while the "
            f"loop trains the model: {names}",
            facts=(
                (
                    f"{counted(left[0].evaluating, 'training call')} in evaluation mode, after "
                    f"{counted(left[0].training, 'call')} in training mode"
                ),
                f"{counted(len(others), 'other layer')} in training mode",
            ),
            change=user.back_to_training(model.number),
            confidence=LIKELY,
            site=call.before if (call := user.of(model.number).training) else None,
        )
    return None


def _iterations(loop: Loop, model: int, mode: str) -> list[Shape]:
    """Return the iterations with a step in which all training calls of a model have a mode."""
    found = []
    for shape in loop.shapes:
        modes = {each.facts["mode"] for each in shape.of("forward") if each.facts["model"] == model}
        if shape.complete and modes == {mode}:
            found.append(shape)
    return found


def _stepped(shapes: Iterable[Shape]) -> set[Fact]:
    """Return the optimizers that step in some iterations."""
    kinds = "step", "scaler step"
    events = [each for shape in shapes for kind in kinds for each in shape.of(kind)]
    return {each.facts["optimizer"] for each in events}


def _is_deliberate(model: ModelModes, before: list[Shape], after: list[Shape]) -> bool:
    """Return whether earlier evaluations ended in training mode, and only the last one does not.

    It is not deliberate if nothing sets a mode after that evaluation.
    """
    is_at_the_end = max(each.last for each in after) > max(each.last for each in before)
    return model.restored > 0 and model.left == 1 and is_at_the_end and not model.switched


def _is_inside(model: ModelModes) -> bool:
    """Return whether a layer that was in evaluation mode has a name in the model."""
    return any(each.name for each in model.layers if each.evaluating)


def _apart(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return ()
    return (f"train() of the model does not reach {', '.join(names)}: not registered in it",)


def _effect(model: ModelModes) -> str:
    effects = []
    if model.dropouts:
        effects.append("dropout is off")
    if model.norms:
        effects.append("norms use their running statistics, which no longer change")
    return ", and ".join(effects)


RULE = Rule(
    code="LEFT_IN_EVALUATION_MODE",
    name="training in evaluation mode",
    rows=(58,),
    citations=("fartashf/vsepp#4", "wkentaro/pytorch-fcn#57"),
    needs=frozenset({"loop", "modes", "names", "static"}),
    judge=judge,
    harmless=True,
)
