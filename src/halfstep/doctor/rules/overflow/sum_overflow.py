"""A sum overflows fp16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_argument
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_BY_INDEX = ("aten.index_add", "aten.scatter_add", "aten.scatter_reduce", "aten._embedding_bag")
_SUMS = ("aten.sum", "aten.cumsum", "aten.norm", "aten.linalg_vector_norm", "aten.dot", *_BY_INDEX)
_LIMIT = 65504.0


def judge(evidence: Evidence) -> Finding | None:
    """Find an fp16 sum that overflows although its terms are finite."""
    for birth in evidence.lost():
        if not birth.op.startswith(_SUMS) or birth.output.format != "fp16":
            continue
        if not birth.overflowed:
            continue
        added = birth.inputs[-1 if birth.op.startswith(_BY_INDEX) else 0]
        return Finding(
            summary=f"{birth.called} over a tensor of shape {' x '.join(map(str, added.shape))} "
            f"with values up to {added.largest:.4g} reaches {birth.exact:.6g}; the maximum of fp16 "
            f"is {_LIMIT:g}",
            facts=(
                birth.appears,
                "inf or NaN reaches the loss or the gradients"
                if birth.culprit
                else "division by inf gives 0",
            ),
            change=_change(birth),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _change(birth: Birth) -> tuple[str, ...]:
    line = birth.user_site.text if birth.user_site else "total = x.sum(-1)"
    changed = None
    if birth.operator in ("sum", "cumsum"):
        changed = with_argument(line, birth.operator, "dtype", "torch.float32")
    if changed is None:
        return f"- {line}", "+ # the same in fp32: x.float() for each argument x"
    return (
        f"- {line}",
        f"+ {changed}",
        "+ # where the next layer needs fp16, cast the final result, which must be below 65504",
    )


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
