"""An evaluation updates the weights, because it runs the code of a training step.

One function serves both phases, and its backward pass and step are not left out in evaluation mode.
So the model is trained on the samples of its evaluation, whose result means nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.switches import ModeLedger
from halfstep.doctor.signals.program.names import UserNames
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Event, Evidence, Shape

_FEWEST = 4  # steps in evaluation mode
_SHARE = 0.5  # of the steps in training mode


def judge(evidence: Evidence) -> Finding | None:
    """Find steps in evaluation mode between those of training, by the same lines."""
    names = evidence.of(UserNames)
    for model in evidence.of(ModeLedger).models:
        owners = evidence.static.models[model.number].optimizers
        shapes: dict[str, list[Shape]] = {"train": [], "eval": []}
        for shape in evidence.loop.shapes:
            mode, step = _mode(shape, model.number), _step(shape)
            if shape.complete and mode in shapes and step and step.facts["optimizer"] in owners:
                shapes[mode].append(shape)
        trains, evaluates = shapes["train"], shapes["eval"]
        count, total = (sum(each.count for each in kind) for kind in (evaluates, trains))
        if not _FEWEST <= count <= _SHARE * total or not _take_turns(trains, evaluates):
            continue
        step = _step(evaluates[0])
        if step is None or step.site not in {own.site for each in trains if (own := _step(each))}:
            continue
        line = step.site.text if step.site else "optimizer.step()"
        name = names.of(model.number).name or "model"
        return Finding(
            summary=f"{counted(count, 'step')} with {names.title(model.number, model.kind)} in "
            "evaluation mode update its weights, between phases of training: the model learns "
            "the samples of its evaluations, whose results mean nothing",
            facts=(f"the same line makes {counted(total, 'step')} in training mode",),
            change=(
                f"- {line}",
                f"+ if {name}.training:  # and so the backward pass",
                f"+     {line}",
            ),
            confidence=LIKELY,
            site=step.site,
        )
    return None


def _mode(shape: Shape, model: int) -> str:
    """Return the mode of all training calls of a model in an iteration; "" for several or none."""
    modes = {
        str(each.facts["mode"]) for each in shape.of("forward") if each.facts["model"] == model
    }
    return modes.pop() if len(modes) == 1 else ""


def _step(shape: Shape) -> Event | None:
    """Return the only step of an iteration; a scaler's contains that of the optimizer."""
    steps = shape.of("scaler step") or shape.of("step")
    return steps[0] if len(steps) == 1 else None


def _take_turns(trains: list[Shape], evaluates: list[Shape]) -> bool:
    """Return whether phases of evaluations lie between phases of training, and come again."""
    first, last = min(each.first for each in evaluates), max(each.last for each in evaluates)
    count = sum(each.count for each in evaluates)
    begins = min(each.first for each in trains) < first
    return begins and last - first + 1 > count and max(each.last for each in trains) > first


RULE = Rule(
    code="STEPS_IN_EVALUATION",
    name="an evaluation that updates the weights",
    rows=(58,),
    citations=("princeton-vl/pose-ae-train#11",),
    needs=frozenset({"loop", "modes", "names", "static"}),
    judge=judge,
    harmless=True,
)
