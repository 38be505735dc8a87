"""A sum overflows fp16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_argument
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.called import HalfOverflow
    from halfstep.doctor.record.sites import Site

_BY_INDEX = ("aten.index_add", "aten.scatter_add", "aten.scatter_reduce", "aten._embedding_bag")
_SUMS = ("aten.sum", "aten.cumsum", "aten.norm", "aten.linalg_vector_norm", "aten.dot", *_BY_INDEX)
_LIMIT = 65504.0
_BY_THE_LOOP = frozenset({"sum", "cumsum", "nansum"})
_SHARE = 1e-3  # smaller quotients may be 0 on purpose


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
            change=_change(birth.user_site, birth.operator),
            site=birth.user_site,
            module=birth.module,
        )
    return next(map(_of_loop, filter(_divides, evidence.overflows)), None)


def _divides(overflow: HalfOverflow) -> bool:
    """Return whether the loop divides its inputs by a sum that overflows."""
    is_sum = overflow.name in _BY_THE_LOOP and overflow.format == "fp16"
    return is_sum and not overflow.of_gradients and overflow.share >= _SHARE


def _of_loop(overflow: HalfOverflow) -> Finding:
    return Finding(
        summary=f"{overflow.name} reaches {overflow.exact:.6g}; the maximum of fp16 is {_LIMIT:g}, "
        "so the sum is inf, and what is divided by it becomes 0",
        facts=(
            f"this happened {counted(overflow.count, 'time')}",
            f"in fp32, such a quotient is up to {overflow.share:.2g}",
        ),
        change=_change(overflow.site, overflow.name),
        confidence=LIKELY,
        site=overflow.site,
    )


def _change(site: Site | None, operator: str) -> tuple[str, ...]:
    line = site.text if site else "total = x.sum(-1)"
    changed = None
    if operator in _BY_THE_LOOP:
        changed = with_argument(line, operator, "dtype", "torch.float32")
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
    needs=frozenset({"births", "overflows", "precision", "replays"}),
    judge=judge,
    explains=("ACTIVATIONS_TOO_LARGE", "LOSS_IN_FP16", "GRADIENTS_UNDERFLOW"),
)
