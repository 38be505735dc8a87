"""A buffer that adds up numbers is in half precision, and no longer changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.sites import place
from halfstep.doctor.verdict import CERTAIN, Finding, Rule
from halfstep.formats import FORMATS

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find buffers in a half format to which the last step adds without effect."""
    absorbed = evidence.precision.absorbed
    if not absorbed:
        return None
    first = absorbed[0]
    names = ", ".join(each.name for each in absorbed[:3])
    digits = FORMATS[first.format].mantissa_bits + 1
    return Finding(
        summary=f"a running total is a buffer in {first.format} and stands still at "
        f"{first.largest:g}: {first.format} has {digits} significant bits, so what each step adds "
        "is less than half the distance to the next number",
        facts=(
            (
                f"in the last step, {first.lost} of {first.count} elements of {first.name} did not "
                "change although something was added"
            ),
            f"buffers: {names}; added to {place(first.module, first.site)}",
        ),
        change=(
            "+ # keep the buffer in fp32 when the model is cast, as in:",
            "+ module.float()  # the module that owns it, after the cast of the model",
        ),
        confidence=CERTAIN,
        site=first.site,
        module=first.module,
    )


RULE = Rule(
    code="ACCUMULATOR_IN_HALF",
    name="a running total in half precision",
    rows=(29,),
    citations=(
        "pytorch/executorch#20090",
        "jax-ml/ml_dtypes#63",
    ),
    needs=frozenset({"precision"}),
    judge=judge,
)
