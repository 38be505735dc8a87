"""A batch of the data contains inf or NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_SOURCE = "in the data, or computed before the loop receives the batch"
_UNSURE = "in the data, or computed by the loop before the model"


def judge(evidence: Evidence) -> Finding | None:
    """Find a batch that contains inf or NaN which no recorded call of the loop made."""
    batches = [
        each
        for each in evidence.inputs
        if each.what == "batch" and each.is_from_loop and not each.makers
    ]
    if not batches:
        return None
    first = next((each for each in batches if each.is_known), batches[0])
    place = ", ".join(map(str, first.index))
    source = _SOURCE if first.is_known else _UNSURE
    name = first.expression or ("targets" if first.is_combined else "inputs")
    return Finding(
        summary=f"the batch of step {first.iteration} contains "
        f"{counted(first.count, f'{first.value} value')}: {source}",
        facts=(
            f"the first one is at index [{place}] (sample {first.index[0] if first.index else 0})"
            + (f" of {first.expression}" if first.expression else ""),
        ),
        change=(
            f"+ if not torch.isfinite({name}).all():",
            f"+     raise ValueError({f'inf or NaN in {name}: inspect this batch'!r})",
            *((f"  {first.site.text}",) if first.site else ()),
        ),
        confidence=CERTAIN if first.is_known and first.is_culprit else LIKELY,
        site=first.site,
    )


RULE = Rule(
    code="CORRUPT_BATCH",
    name="inf or NaN in the data",
    rows=(35,),
    citations=("ecmwf/WeatherGenerator#356",),
    needs=frozenset({"inputs"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH", "NORM_STATISTICS_POISONED"),
)
