"""A frozen part of a model is in training mode, so its dropout is on, or its norms move."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.program.frozen_parts import FrozenLayers
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.record import Evidence
    from halfstep.doctor.signals.program.frozen_parts import FrozenLayer

_MOVED = 0.1  # standard deviations


def judge(evidence: Evidence) -> Finding | None:
    """Find parts whose evaluation mode was undone, and norms that move in frozen parts."""
    layers = evidence.of(FrozenLayers).layers
    undone = [each for each in layers if each.undone and not each.itself]
    if undone:
        return _undone(undone)
    moved = [each for each in layers if not each.drops and each.moved >= _MOVED and not each.undone]
    if moved:
        return _moved(moved)
    passed = [each for each in layers if each.drops and each.through and not each.undone]
    return _passed(passed) if passed else None


def _undone(layers: Sequence[FrozenLayer]) -> Finding:
    site = layers[0].undone
    effects = []
    if any(each.drops for each in layers):
        effects.append("its dropout is on")
    if not all(each.drops for each in layers):
        effects.append("its norms use the statistics of each batch and move the running ones")
    return Finding(
        summary=f"the loop puts a frozen part of {layers[0].model} into evaluation mode, but a "
        f"later train() of the whole model undoes this: in training, {', and '.join(effects)}",
        facts=(
            f"{counted(len(layers), 'layer')} in training mode: {_names(layers)}",
            "no parameter of the part requires gradients, and none changes",
        ),
        change=(
            "  model.train()",
            f"+ {site.text if site else 'part.eval()'}  # again, after each train()",
        ),
        confidence=POSSIBLE if all(each.evaluated for each in layers) else LIKELY,
        site=site,
    )


def _moved(layers: Sequence[FrozenLayer]) -> Finding:
    farthest = max(layers, key=lambda each: each.moved)
    return Finding(
        summary=f"a part of {layers[0].model} is frozen, but its norms are in training mode: they "
        "use the statistics of each batch in training, and the running ones, which move, in "
        "evaluation",
        facts=(
            f"{counted(len(layers), 'norm')} of frozen parts: {_names(layers)}",
            (
                f"the running mean of {farthest.name or farthest.kind} has moved by "
                f"{farthest.moved:.2g} standard deviations"
            ),
            "right if the statistics of a new data set are to be learned, from large mixed batches",
        ),
        change=(
            "  model.train()",
            "+ # the frozen part again, after each train():",
            "+ part.eval()",
        ),
        confidence=POSSIBLE,
    )


def _passed(layers: Sequence[FrozenLayer]) -> Finding:
    through = layers[0].through
    return Finding(
        summary=f"a model, {layers[0].model}, is frozen and only passes gradients on to its "
        "inputs, but it is in training mode: its dropout is on, so that each call computes another "
        "function",
        facts=(
            f"{counted(len(layers), 'layer')} in training mode: {_names(layers)}",
            "no parameter of the model requires gradients, and none changes",
        ),
        change=(
            "+ # call eval() of the model where its parameters are frozen",
            *((f"  {through.text}",) if through else ()),
        ),
        confidence=POSSIBLE,
        site=through,
    )


def _names(layers: Sequence[FrozenLayer]) -> str:
    return ", ".join(each.name or each.kind for each in layers[:3])


RULE = Rule(
    code="FROZEN_PART_IN_TRAINING_MODE",
    name="a frozen part in training mode",
    rows=(58,),
    citations=("pytorch/pytorch#86590", "yxuansu/TaCL#11"),
    needs=frozenset({"frozen_parts"}),
    judge=judge,
    harmless=True,
)
