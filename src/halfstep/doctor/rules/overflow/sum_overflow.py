"""A sum overflows fp16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_SUMS = ("aten.sum", "aten.cumsum", "aten.norm", "aten.linalg_vector_norm", "aten.dot")
_LIMIT = 65504.0


def judge(evidence: Evidence) -> Finding | None:
    """Find an fp16 sum that overflows although its terms are finite."""
    for birth in evidence.lost():
        if not birth.op.startswith(_SUMS) or birth.output.format != "fp16":
            continue
        if not birth.overflowed:
            continue
        added = birth.inputs[0]
        return Finding(
            summary=f"{birth.operator} of {' x '.join(map(str, added.shape))} "
            f"values up to {added.largest:.4g} is {birth.exact:.6g}, above fp16's maximum of "
            f"{_LIMIT:g}",
            facts=(
                birth.appears,
                "inf or NaN reaches the loss or the gradients"
                if birth.culprit
                else "division by inf gives 0",
            ),
            change=(
                f"- {birth.user_site.text}" if birth.user_site else "- total = x.sum()",
                "+ # the same in fp32: x.sum(..., dtype=torch.float32)",
            ),
            site=birth.user_site,
            module=birth.module,
        )
    return None


RULE = Rule(
    code="SUM_OVERFLOW",
    name="a sum overflows fp16",
    rows=(20,),
    citations=(
        "ROCm/AMDMIGraphX#850",
        "tinygrad/tinygrad#11705",
    ),
    needs=frozenset({"births", "precision", "replays"}),
    judge=judge,
    explains=("ACTIVATIONS_TOO_LARGE", "LOSS_IN_FP16", "GRADIENTS_UNDERFLOW"),
)
