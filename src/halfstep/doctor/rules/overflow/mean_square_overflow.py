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
_PRODUCTS = {"aten.bmm", "aten.mm", "aten.dot", "aten.vdot"}
_ROOTS = {"aten.rsqrt", "aten.sqrt", "aten.pow", "aten.reciprocal", "aten.div"}
# Least relative difference between the loss and the loss in fp32. If a residual connection bypasses
# a norm that returns zeros, the loss changes little, but still more than by rounding.
APART = 0.005


def judge(evidence: Evidence) -> Finding | None:
    """Find an fp16 square that overflows before a mean or sum, in a loss or under a root."""
    for birth in evidence.lost(APART):
        if birth.output.format != "fp16" or not birth.overflowed:
            continue
        if not (_is_sum_of_squares(birth) or (birth.op in _SQUARES and _is_added(birth))):
            continue
        if not (birth.culprit or _ROOTS & {*birth.consumers, *birth.swallowed}):
            continue
        if any("mean" in each.op for each in birth.lineage if each.distance <= 2):
            continue  # The mean was subtracted first, so this is a variance.
        if birth.is_variance:
            continue
        largest = max((each.largest or 0.0 for each in birth.inputs), default=0.0)
        return Finding(
            summary=f"a {_reduction(birth)} of squares is computed in fp16: the "
            f"{'sum for numbers up to' if birth.op in _PRODUCTS else 'square of'} {largest:.4g} is "
            f"{birth.exact:.4g}, above fp16's maximum of 65504",
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


def _is_added(birth: Birth) -> bool:
    """Return whether the operator squares a tensor, as `x * x` does, for a mean or a sum."""
    largest, exact = birth.inputs[0].largest or 0.0, birth.exact or 0.0
    return (
        any("mean" in each or "sum" in each for each in birth.consumers)
        and _are_alike(birth)
        and len({each.shape for each in birth.inputs}) == 1
        and math.isclose(exact, largest**2, rel_tol=1e-6)
    )


def _is_sum_of_squares(birth: Birth) -> bool:
    """Return whether the operator multiplies each row of a tensor by itself, to one number."""
    if birth.op not in _PRODUCTS or len(birth.inputs) != 2 or not _are_alike(birth):
        return False
    rows, width = math.prod(birth.output.shape), birth.inputs[0].shape[-1]
    lowest = birth.output.lowest
    one_each = math.prod(birth.inputs[0].shape) == rows * width
    return one_each and (lowest is None or lowest >= 0) and not birth.output.negative_infs


def _are_alike(birth: Birth) -> bool:
    """Return whether all inputs hold the same numbers, as far as their summaries tell."""
    first = replace(birth.inputs[0], name="", shape=())
    return all(replace(each, name="", shape=()) == first for each in birth.inputs)


def _reduction(birth: Birth) -> str:
    if birth.op in _PRODUCTS:
        return "sum"
    found = [each for each in birth.consumers if "mean" in each or "sum" in each]
    return "sum" if "sum" in found[0] else "mean"


def _change(birth: Birth) -> tuple[str, ...]:
    line = birth.user_site.text if birth.user_site else ""
    if changed := squares_in_fp32(line):
        return f"- {line}", f"+ {changed}"
    if birth.op in _PRODUCTS:
        return (
            *((f"- {line}",) if line else ()),
            "+ # x.float().square().sum(-1), or the same product of fp32 tensors outside autocast",
        )
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
