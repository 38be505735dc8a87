"""A buffer or another total that adds up numbers is in half precision, and no longer changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.sites import place
from halfstep.doctor.signals.values.totals import Total, Totals
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.formats import FORMATS

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

ADDITIONS = 16
SHARE = 0.5


def judge(evidence: Evidence) -> Finding | None:
    """Find totals in a half format to which a step adds without effect."""
    absorbed = evidence.precision.absorbed
    if not absorbed:
        return next(map(_of_the_loop, filter(_stands_still, evidence.of(Totals).lines)), None)
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


def _stands_still(total: Total) -> bool:
    return total.additions >= ADDITIONS and total.lost >= SHARE * total.count


def _of_the_loop(total: Total) -> Finding:
    digits = FORMATS[total.format].mantissa_bits + 1
    return Finding(
        summary=f"a running total in {total.format} stands still at {total.largest:g}: "
        f"{total.format} has {digits} significant bits, so what this line adds is less than half "
        "the distance to the next number",
        facts=(
            f"{total.lost} of {total.count} elements did not change although something was added",
            f"this line added {total.additions} times",
        ),
        change=(
            *((f"  {total.site.text}",) if total.site else ()),
            "+ # keep this total in fp32: make it with dtype=torch.float32, and add x.float()",
        ),
        confidence=LIKELY,
        site=total.site,
    )


RULE = Rule(
    code="ACCUMULATOR_IN_HALF",
    name="a running total in half precision",
    rows=(29,),
    citations=(
        "pytorch/executorch#20090",
        "jax-ml/ml_dtypes#63",
    ),
    needs=frozenset({"precision", "totals"}),
    judge=judge,
)
