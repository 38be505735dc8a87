"""An average of the parameters is kept in half precision, and its updates are rounded away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import difference, in_fp32
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

UPDATES = 4
ELEMENTS = 16
SHARE = 0.5


def judge(evidence: Evidence) -> Finding | None:
    """Find averages that differ from their parameters, but that updates do not change."""
    followers = [
        each for each in evidence.averages if each.updates >= UPDATES and each.lagging >= ELEMENTS
    ]
    stuck = [each for each in followers if each.stuck >= SHARE * each.lagging]
    if not stuck:
        return None
    worst = max(stuck, key=lambda each: each.lagging)
    return Finding(
        summary=f"an average of the parameters is kept in {worst.format}: its updates are less "
        f"than half the distance to the next {worst.format} number, so they are rounded away",
        facts=(
            (
                f"{worst.parameter}: of the average's elements that differ from the parameter, "
                f"{worst.stuck / worst.lagging:.0%} did not change in the {worst.updates} updates "
                "that doctor examined"
            ),
            f"examined parameters with such an average: {len({each.parameter for each in stuck})}",
        ),
        change=(
            *_creation(evidence, worst.format),
            *((f"  {worst.site.text}",) if worst.site else ()),
            "+ # in the line that updates the average, write parameter.float(), not parameter;",
            "+ # where the average is evaluated, cast floating-point inputs: inputs.float()",
        ),
        site=worst.site,
        module=worst.parameter.rpartition(".")[0],
    )


def _creation(evidence: Evidence, format_: str) -> tuple[str, ...]:
    """Return the change of the line that casts a copy of the model, if it is known."""
    kinds = {each.kind for each in evidence.static.models if each.training_calls}
    casts = [
        each
        for each in evidence.casts
        if each.format == format_ and not each.is_trained and each.kind in kinds
    ]
    changed = in_fp32(casts[0].text, format_) if len({each.site for each in casts}) == 1 else None
    if changed:
        return difference(casts[0].text, changed)
    return (
        f"- average = copy.deepcopy(model)  # or another copy in {format_}",
        "+ average = copy.deepcopy(model).float()",
    )


RULE = Rule(
    code="AVERAGE_IN_HALF",
    name="an average of weights in half precision",
    rows=(29,),
    citations=("d8ahazard/sd_dreambooth_extension#1415",),
    needs=frozenset({"averages", "casts", "static"}),
    judge=judge,
    harmless=True,
)
