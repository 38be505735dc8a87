"""An average of the weights is updated, or evaluated, but has the weights of its beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.averages import AverageLedger, AverageLine
from halfstep.doctor.signals.program.names import UserNames
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 3  # updates
_SAME = 1e-3
_TOLERANCE = 1e-3


def judge(evidence: Evidence) -> Finding | None:
    """Find updates that change nothing, and a model of torch's class that was never updated."""
    ledger = evidence.of(AverageLedger)
    for line in ledger.lines:
        # A difference of both, such as p - p0 in a penalty, has a negative factor.
        is_average = all(
            each.added >= -_TOLERANCE and each.kept >= -_TOLERANCE for each in line.updates
        )
        if line.still >= _FEWEST and line.updates and is_average:
            return _of_updates(line)
    names = evidence.of(UserNames)
    for model in ledger.models:
        if model.updates == 0 and model.site is not None:
            name = names.of(model.number).name or "averaged_model"
            return Finding(
                summary=f"{name} is evaluated at {model.site}, but update_parameters() was never "
                "called: it has the weights with which it was built",
                facts=("its n_averaged is 0 at the end",),
                change=(f"+ {name}.update_parameters(model)  # after optimizer.step()",),
                confidence=LIKELY,
                site=model.site,
            )
    return None


def _of_updates(line: AverageLine) -> Finding:
    first = line.updates[0]
    if abs(first.kept - 1) < _SAME and abs(first.added) < _SAME:
        why = "each update gives it its own values again: a decay of 1, or the average as source"
        change: tuple[str, ...] = (
            f"  {line.site.text if line.site else ''}",
            "+ # average = decay * average + (1 - decay) * trained weights, with a decay below 1",
        )
    else:
        why = "the result is a new tensor, which nothing puts into the average"
        change = (
            f"  {line.site.text if line.site else ''}",
            "+ # write into the average: average.copy_(result), or load_state_dict(results)",
        )
    return Finding(
        summary=f"the average of the weights never moves: after {counted(line.still, 'update')} "
        "that were compared, it has the values of before the first one, while the trained weights "
        "have moved",
        facts=(
            f"an update computes {first.kept:.4g} * average + {first.added:.4g} * weights",
            why,
        ),
        change=change,
        confidence=LIKELY,
        site=line.site,
    )


RULE = Rule(
    code="AVERAGE_NEVER_MOVES",
    name="an average of weights that never moves",
    rows=(29,),
    citations=("huggingface/pytorch-image-models#1831", "lucidrains/DALLE2-pytorch#131"),
    needs=frozenset({"averaging", "names"}),
    judge=judge,
    explains=("VALUE_NEVER_READ",),
    harmless=True,
)
