"""Positions or timesteps are in half precision, which rounds neighbours to the same value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.sites import place
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_EXACT = {"fp16": 2048, "bf16": 256}
SHARE = 0.05
_CHANGE = (
    "- positions = torch.arange(length, dtype=inputs.dtype)",
    "+ positions = torch.arange(length, dtype=torch.float32)",
    "+ # and cast only the sines and cosines that are computed from them",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find whole numbers that rounding to a half-precision format has changed."""
    for each in evidence.rounded:
        if each.changed < SHARE * each.count:
            continue
        return Finding(
            summary=f"{each.format} rounds {each.changed} of {each.count} whole numbers up to "
            f"{each.largest:g}, because it represents every whole number only up to "
            f"{_EXACT[each.format]}: different positions or timesteps become equal",
            facts=(
                f"only {each.distinct} of {each.count} values remain distinct",
                f"rounded {place(each.module, each.site)}",
            ),
            change=_CHANGE,
            site=each.site,
            module=each.module,
        )
    for model in evidence.static.models:
        if model.positions:
            return Finding(
                summary=f"buffer {model.positions[0]} contains rising whole numbers in a half "
                "format, which rounds some of them: different positions become equal",
                facts=(f"{len(model.positions)} such buffers in {model.kind}",),
                change=_CHANGE,
                module=model.positions[0].rpartition(".")[0],
            )
    return None


RULE = Rule(
    code="POSITIONS_IN_HALF",
    name="positions in half precision",
    rows=(57,),
    citations=("NVIDIA/Megatron-LM#535", "EleutherAI/gpt-neox#1003"),
    needs=frozenset({"rounded", "static"}),
    judge=judge,
)
