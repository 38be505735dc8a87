"""Norms that the loop puts into evaluation mode run in training mode, as a later call undoes it."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.switches import ModeLedger
from halfstep.doctor.signals.program.names import UserNames
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.signals.ledgers.switches import Layer, ModelModes


def judge(evidence: Evidence) -> Finding | None:
    """Find norms that run in training mode in training calls after they were frozen.

    Either their parameters are frozen, too, or no model has run before their mode was set back.
    """
    names = evidence.of(UserNames)
    for model in evidence.of(ModeLedger).models:
        undone = [
            each
            for each in model.layers
            if each.undone and each.resumed and (each.frozen or (each.unused and not each.drops))
        ]
        if not undone:
            continue
        site, calls = undone[0].undone, undone[0].evaluating
        when = (
            f"after {counted(calls, 'training call')}"
            if calls
            else "before the first training call"
        )
        return Finding(
            summary=f"the loop puts {counted(len(undone), 'norm')} of "
            f"{names.title(model.number, model.kind)} into evaluation mode, but a later train() of "
            f"the whole model puts them back into training mode, {when}",
            facts=(
                (
                    f"{counted(undone[0].training, 'training call')} in training mode: "
                    f"{', '.join(each.name or each.kind for each in undone[:3])}"
                ),
                (
                    "their parameters require no gradients"
                    if all(each.frozen for each in undone)
                    else "no model ran between both calls, so the first one had no effect"
                ),
            ),
            change=_change(undone, model),
            confidence=LIKELY,
            site=site,
        )
    return None


def _change(undone: list[Layer], model: ModelModes) -> tuple[str, ...]:
    """Return a change that freezes the norms again after each `train()` that undoes it."""
    others = {each.name for each in model.layers} - {each.name for each in undone}
    lines = {again.site for each in undone for again in each.again}
    change: list[str] = []
    if any(each.earlier for each in undone):  # The line may have run before they were frozen, too.
        return ("+ # freeze the norms again, after each train() of the whole model from then on",)
    for line in lines:
        called = (
            re.fullmatch(r"([\w.\[\]]+)\.train\((?:True|mode=True)?\)", line.text) if line else None
        )
        paths = [again.path for each in undone for again in each.again if again.site == line]
        if line is None or called is None:
            return ("+ # freeze the norms again, after each train() of the whole model",)
        inside = _only_these(paths, others if undone[0].name in paths else set())
        change += [f"@ {line}", f"  {line.text}"]
        change += [f"+ {called[1]}{_as_code(each)}.eval()" for each in inside]
    return tuple(change)


def _only_these(paths: list[str], others: set[str]) -> list[str]:
    """Return the module that contains these layers, and none of the others; or the layers."""
    parts = zip(*(path.split(".")[:-1] for path in paths), strict=False)
    common = ".".join(each[0] for each in takewhile(lambda each: len({*each}) == 1, parts))
    is_alone = common and not any(each.startswith(f"{common}.") for each in others)
    return [common] if is_alone else paths


def _as_code(path: str) -> str:
    """Return a path of modules as code: "layers.0.norm" as ".layers[0].norm"."""
    parts = path.split(".")
    if not all(each.isidentifier() or each.isdigit() for each in parts):
        return f'.get_submodule("{path}")'
    return "".join(f"[{each}]" if each.isdigit() else f".{each}" for each in parts)


RULE = Rule(
    code="FREEZE_UNDONE",
    name="frozen norms in training mode",
    rows=(58,),
    citations=("facebookresearch/maskrcnn-benchmark#785",),
    needs=frozenset({"modes", "names"}),
    judge=judge,
    harmless=True,
)
