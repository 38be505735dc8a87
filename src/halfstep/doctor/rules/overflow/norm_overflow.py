"""In a norm layer, the variance or its inverse square root overflows fp16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_converted_receiver
from halfstep.doctor.remedies import squares_in_fp32
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_STATISTICS = ("aten.var", "aten.std", "aten.native_layer_norm", "aten.native_group_norm")
_NATIVE = {("aten.native_layer_norm",), ("aten.native_group_norm",)}
_SQUARES = {"aten.pow", "aten.mul", "aten.square"}


def judge(evidence: Evidence) -> Finding | None:
    """Find an fp16 overflow in a variance, in its squares, or in a cast before a norm."""
    for birth in evidence.lost():
        if birth.output.format != "fp16" or not birth.overflowed:
            continue
        cast = birth.op == "aten._to_copy" and birth.consumers[:1] in _NATIVE
        is_of_norm = _is_of_variance(birth) or _is_of_neighbours(birth)
        if not (cast or birth.op.startswith(_STATISTICS) or is_of_norm):
            continue
        largest = max((each.largest or 0.0 for each in birth.inputs), default=0.0)
        return Finding(
            summary=f"a norm layer computes in fp16: {birth.called} of values up "
            f"to {largest:.4g} is {birth.exact:.4g}, above fp16's maximum of 65504",
            facts=(
                birth.appears,
                "inf or NaN reaches the loss or the gradients"
                if birth.culprit
                else "division by inf gives 0: the layer returns zeros",
            ),
            change=_change(birth.user_site.text if birth.user_site else ""),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _is_of_variance(birth: Birth) -> bool:
    if birth.op not in _SQUARES or not any("mean" in each for each in birth.consumers):
        return False
    if not any("sqrt" in each or each == "aten.div" for each in birth.consumers):
        return False
    if birth.is_variance:
        return True
    near = [each.op for each in birth.lineage if each.distance <= 2]
    return "aten.sub" in near and any("mean" in each.op for each in birth.lineage)


def _is_of_neighbours(birth: Birth) -> bool:
    """Return whether it is a square whose mean over some channels divides, as in LRN."""
    is_pooled = any("avg_pool" in each for each in birth.consumers)
    return birth.op in _SQUARES and is_pooled and birth.is_divided


def _change(line: str) -> tuple[str, ...]:
    conversions = [with_converted_receiver(line, name, ".float()") for name in ("var", "std")]
    changed = squares_in_fp32(line) or next(filter(None, conversions), None)
    if changed:
        return f"- {line}", f"+ {changed}"
    return ("+ # compute the norm in fp32, with its input cast by .float()",)


RULE = Rule(
    code="NORM_OVERFLOW",
    name="a norm layer overflows fp16",
    rows=(18,),
    citations=(
        "keras-team/keras#22586",
        "facebookresearch/multimodal#410",
    ),
    needs=frozenset({"births", "precision", "replays"}),
    judge=judge,
    explains=("ACTIVATIONS_TOO_LARGE", "GRADIENTS_UNDERFLOW", "GRADIENTS_VANISH"),
)
