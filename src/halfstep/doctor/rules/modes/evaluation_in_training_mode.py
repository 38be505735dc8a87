"""A model is called outside of its training in training mode, which disturbs its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.switches import ModeLedger
from halfstep.doctor.signals.program.features import Features
from halfstep.doctor.signals.program.names import UserNames
from halfstep.doctor.signals.values.unused_calls import Unused
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.signals.ledgers.switches import ModelModes
    from halfstep.doctor.signals.program.names import CalledAt


_FEWEST = 3  # calls
_EVALUATIONS = 2
_RARE = 2  # Calls in most iterations belong to the training, as those of a policy that acts.


def judge(evidence: Evidence) -> Finding | None:
    """Find evaluations, or calls of a teacher, that run in training mode."""
    return (
        _disturbed(evidence) or _with_gradients(evidence) or _teacher(evidence) or _twin(evidence)
    )


def _teacher(evidence: Evidence) -> Finding | None:
    """Find a model that others learn from, with fixed parameters, in training mode."""
    for model in evidence.of(Features).models:
        if not (model.layers and model.still and model.taught) or model.count < _FEWEST:
            continue
        layers = ", ".join(model.layers)
        call = evidence.of(UserNames).call(model.site)
        title = f"{call.name} ({model.kind})" if call else model.kind
        return Finding(
            summary=f"{title} computes targets or features for the training, with fixed "
            f"parameters, but in training mode: its {layers} give other results in each call, and "
            "running statistics change",
            facts=(f"{counted(model.count, 'call')} whose results the training used",),
            change=_in_evaluation_mode(call) or ("+ teacher.eval()  # before the training",),
            confidence=LIKELY,
            site=model.site,
        )
    return None


def _disturbed(evidence: Evidence) -> Finding | None:
    """Find evaluations that update running statistics, between training calls.

    A generator that makes samples for the training of a critic is not evaluated.
    """
    trains_others = {model.site for model in evidence.of(Features).models}
    names = evidence.of(UserNames)
    for model in evidence.of(ModeLedger).models:
        owners = evidence.static.models[model.number].optimizers
        if not model.disturbed or not owners or model.disturbed_by in trains_others:
            continue
        calls = max(each.disturbed for each in model.layers)
        dropped = ", and dropout is on" if model.dropouts else ""
        return Finding(
            summary=f"the loop evaluates {names.title(model.number, model.kind)} in training mode: "
            "the norms use the statistics of each batch, and put the data of the evaluation into "
            f"their running statistics{dropped}",
            facts=(
                (
                    f"{counted(calls, 'call')} without gradients in training mode, in "
                    f"{counted(model.disturbed, 'evaluation')} before training went on"
                ),
                f"norms: {', '.join(model.norms)}",
            ),
            change=_change(names, model),
            confidence=LIKELY,
            site=model.disturbed_by,
        )
    return None


def _with_gradients(evidence: Evidence) -> Finding | None:
    """Find evaluations that neither set the mode nor switch gradients off."""
    for line in evidence.of(Unused).lines:
        model = evidence.static.models[line.model]
        is_rare = line.iterations * _RARE <= line.steps
        if not model.optimizers or line.iterations < _EVALUATIONS or not is_rare:
            continue
        title = evidence.of(UserNames).title(line.model, model.kind)
        return Finding(
            summary=f"the loop evaluates {title} in training mode: the norms use the statistics of "
            "each batch, and put the data of the evaluation into their running statistics",
            facts=(
                (
                    f"{counted(line.count, 'call')} in {counted(line.iterations, 'iteration')} "
                    "whose results no backward pass uses"
                ),
                "they compute a graph for gradients, too: torch.no_grad() saves its memory",
                f"norms: {', '.join(line.norms)}",
            ),
            change=("+ model.eval()  # before the evaluation, and model.train() after it",),
            confidence=LIKELY,
            site=line.site,
        )
    return None


def _twin(evidence: Evidence) -> Finding | None:
    """Find a copy of the model that is called in training mode, while the model is evaluated."""
    names = evidence.of(UserNames)
    models = {each.number: each for each in evidence.of(ModeLedger).models}
    for model in models.values():
        if model.unset < _FEWEST or model.twin not in models:
            continue
        other = models[model.twin]
        dependent = ", ".join([*model.dropouts, *model.norms])
        title = names.title(model.number, model.kind)
        return Finding(
            summary=f"the loop calls {title} for an evaluation, but sets evaluation mode for "
            f"{names.title(other.number, other.kind)}: {title} stays in the training mode of its "
            "construction",
            facts=(
                f"{counted(model.unset, 'call')} without gradients in training mode",
                f"modules that compute other results in this mode: {dependent}",
            ),
            change=_in_evaluation_mode(names.call(model.unset_by))
            or ("+ # call eval() of the model that is evaluated",),
            confidence=LIKELY,
            site=model.unset_by,
        )
    return None


def _change(names: UserNames, model: ModelModes) -> tuple[str, ...]:
    """Return a change that sets the modes around each evaluation that ran in training mode."""
    first = names.call(model.disturbed_by)
    calls = [each for each in names.of(model.number).others if each.training]
    changes: dict[tuple[str, ...], None] = {}
    for call in dict.fromkeys([first, *calls] if first else []):
        if call is None or not _in_evaluation_mode(call):
            continue
        changes[_in_evaluation_mode(call)] = None
        later = call.after
        back = names.back_to_training(model.number)
        if later is not None:
            back = (f"@ {later}", f"+ {call.name}.train()", f"  {later.text}")
        changes[back] = None
    if not changes:
        return ("+ model.eval()  # before the evaluation, and model.train() after it",)
    return tuple(line for each in changes for line in each)


def _in_evaluation_mode(call: CalledAt | None) -> tuple[str, ...]:
    """Return a change that puts a model into evaluation mode before a call; none if unknown."""
    if call is None or call.before is None:
        return ()
    return (f"@ {call.before}", f"+ {call.name}.eval()", f"  {call.before.text}")


RULE = Rule(
    code="EVALUATION_IN_TRAINING_MODE",
    name="an evaluation in training mode",
    rows=(58,),
    citations=("princeton-vl/pytorch_stacked_hourglass#44", "nshaud/DeepHyperX#51"),
    needs=frozenset({"features", "modes", "names", "static", "unused calls"}),
    judge=judge,
    harmless=True,
)
