"""A mean is taken over no elements, for example if every target of a batch is ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_converted_divisor
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_VARIANCES = {"aten.var", "aten.std", "aten.var_mean", "aten.std_mean"}


def judge(evidence: Evidence) -> Finding | None:
    """Find a NaN from 0/0, in a mean over no elements or the variance of one element."""
    for birth in evidence.births:
        if not birth.culprit or birth.kind != "nan" or birth.phase != "forward":
            continue
        if "nll_loss" in birth.op:
            what = "every target is the ignored index, so the mean is over no targets"
        elif any(0 in each.shape for each in birth.inputs):
            what = "the selection is empty, so the mean is over no elements"
        elif birth.op == "aten.div" and _is_count(birth):
            what = "the sum and the count are both 0"
        elif birth.op in _VARIANCES and birth.exact is None:
            what = "the variance of n = 1 sample divides by n - 1 = 0"
        else:
            continue
        return Finding(
            summary=f"the loss is 0/0: {what}",
            facts=(birth.appears,),
            change=_change(birth),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _change(birth: Birth) -> tuple[str, ...]:
    line = birth.user_site.text if birth.user_site else ""
    if birth.op in _VARIANCES:
        return ("+ # drop a last batch of one sample: DataLoader(..., drop_last=True)",)
    if "nll_loss" in birth.op:
        return (
            "+ total = cross_entropy(logits, labels, ignore_index=-100, reduction='sum')",
            "+ loss = total / (labels != -100).sum().clamp(min=1)",
        )
    if birth.op == "aten.div" and (changed := with_converted_divisor(line, ".clamp(min=1)")):
        return f"- {line}", f"+ {changed}"
    return (
        *((f"  {line}",) if line else ()),
        "+ # divide a sum by a count of at least 1: values.sum() / max(1, values.numel())",
    )


def _is_count(birth: Birth) -> bool:
    top = birth.inputs[0]
    if not top.zeros:
        return False
    if len(birth.inputs) == 1:
        return True  # The denominator is an integer tensor or a Python number.
    bottom = birth.inputs[1]
    made = [each.op for each in birth.lineage if each.input == 1 and each.distance <= 3]
    summed = not made or any("sum" in each or "count" in each for each in made)
    return bottom.shape == () and bottom.zeros == 1 and summed


RULE = Rule(
    code="NOTHING_TO_AVERAGE",
    name="a mean over no elements",
    rows=(34,),
    citations=(
        "pytorch/pytorch#75181",
        "pytorch/pytorch#116349",
    ),
    needs=frozenset({"births"}),
    judge=judge,
    explains=("DIVISION_BY_ZERO",),
)
