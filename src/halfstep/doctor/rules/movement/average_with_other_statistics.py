"""A model with averaged weights is evaluated with running statistics that are not its own."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.record.averages import AveragedModel, AverageLedger
from halfstep.doctor.signals.program.names import UserNames
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_SEVERAL = 2  # averaged weights


def judge(evidence: Evidence) -> Finding | None:
    """Find statistics of the construction; or those of the last weights in an average of all."""
    names = evidence.of(UserNames)
    for model in evidence.of(AverageLedger).models:
        if model.site is None or model.updates == 0:
            continue
        name = names.of(model.number).name or "averaged_model"
        if model.vectors:
            return _finding(
                model,
                f"{counted(len(model.vectors), 'spectral norm')} of {name} "
                f"{'has' if len(model.vectors) == 1 else 'have'} a vector of length "
                f"{median(model.vectors):.3g} in place of 1: an average of such vectors is none, "
                "and the norm divides the weights by a wrong number",
                _copied(name),
            )
        if model.norms and len(model.stale) == model.norms:
            return _finding(
                model,
                f"{counted(model.norms, 'norm layer')} of {name}, whose weights are averages, "
                f"{'has' if model.norms == 1 else 'have'} the running statistics of the "
                "construction (mean 0, variance 1): the updates leave buffers out",
                _copied(name),
            )
        if model.weighs_alike and model.updates >= _SEVERAL and model.norms and not model.ran:
            return _finding(
                model,
                f"{name} averages {counted(model.updates, 'set')} of weights, but its "
                f"{counted(model.norms, 'norm layer')} "
                f"{'has' if model.norms == 1 else 'have'} the running statistics of the last of "
                "them: it has never run in training mode",
                (f"+ torch.optim.swa_utils.update_bn(loader, {name})  # before its evaluation",),
            )
    return None


def _copied(name: str) -> tuple[str, ...]:
    return (
        f"+ for average, buffer in zip({name}.buffers(), model.buffers()):",
        "+     average.copy_(buffer)  # with each update of its weights",
    )


def _finding(model: AveragedModel, summary: str, change: tuple[str, ...]) -> Finding:
    return Finding(
        summary=summary,
        facts=(
            f"evaluated in evaluation mode at {model.site}",
            *([f"such layers: {', '.join(model.stale[:3])}"] if model.stale else []),
        ),
        change=change,
        confidence=LIKELY,
        site=model.site,
    )


RULE = Rule(
    code="AVERAGE_WITH_OTHER_STATISTICS",
    name="averaged weights with running statistics of others",
    rows=(29,),
    citations=("mosaicml/composer#624", "timgaripov/swa#7"),
    needs=frozenset({"averaging", "names"}),
    judge=judge,
    explains=("NORM_STATISTICS_INITIAL",),
    harmless=True,
)
