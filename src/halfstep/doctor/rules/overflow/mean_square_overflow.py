"""A mean or sum of squares is inf in fp16, because the squares overflow."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.doctor.remedies import squares_in_fp32
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_SQUARES = {"aten.pow", "aten.mul", "aten.square"}
_ROOTS = {"aten.rsqrt", "aten.sqrt", "aten.pow", "aten.reciprocal", "aten.div"}
# Least relative difference between the loss and the loss in fp32. If a residual connection bypasses
# a norm that returns zeros, the loss changes little, but still more than by rounding.
APART = 0.005


def judge(evidence: Evidence) -> Finding | None:
    """Find an fp16 square that overflows before a mean or sum, in a loss or under a root."""
    for birth in evidence.lost(APART):
        if birth.op not in _SQUARES or birth.output.format != "fp16" or not birth.overflowed:
            continue
        if not _is_square(birth):
            continue
        if not any("mean" in each or "sum" in each for each in birth.consumers):
            continue
        if not (birth.culprit or _ROOTS & {*birth.consumers, *birth.swallowed}):
            continue
        if any("mean" in each.op for each in birth.lineage if each.distance <= 2):
            continue  # The mean was subtracted first, so this is a variance.
        if birth.is_variance:
            continue
        largest = max((each.largest or 0.0 for each in birth.inputs), default=0.0)
        return Finding(
            summary=f"a {_reduction(birth)} of squares is computed in fp16: the square of "
            f"{largest:.4g} is {birth.exact:.4g}, above fp16's maximum of 65504",
            facts=(
                birth.appears,
                "inf or NaN reaches the loss or the gradients"
                if birth.culprit
                else "division by the root of inf gives 0: the layer returns zeros",
            ),
            change=_change(birth),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _is_square(birth: Birth) -> bool:
    """Return whether the operator squares a tensor: `x.pow(2)`, `x.square()` or `x * x`."""
    largest, exact = birth.inputs[0].largest or 0.0, birth.exact or 0.0
    alike = all(
        replace(each, name="") == replace(birth.inputs[0], name="") for each in birth.inputs
    )
    return alike and math.isclose(exact, largest**2, rel_tol=1e-6)


def _reduction(birth: Birth) -> str:
    found = [each for each in birth.consumers if "mean" in each or "sum" in each]
    return "sum" if "sum" in found[0] else "mean"


def _change(birth: Birth) -> tuple[str, ...]:
    line = birth.user_site.text if birth.user_site else ""
    if changed := squares_in_fp32(line):
        return f"- {line}", f"+ {changed}"
    return (
        *((f"- {line}",) if line else ()),
        "+ # the same line with squares in fp32: x.float().pow(2)",
    )


RULE = Rule(
    code="MEAN_SQUARE_OVERFLOW",
    name="a mean or sum of squares overflows fp16",
    rows=(19,),
    citations=(
        "pytorch/pytorch#133085",
        "pytorch/pytorch#134106",
    ),
    needs=frozenset({"births", "precision", "replays"}),
    judge=judge,
    explains=("ACTIVATIONS_TOO_LARGE", "GRADIENTS_UNDERFLOW", "GRADIENTS_VANISH"),
)
