"""Positions or timesteps are in half precision, which rounds neighbours to the same value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.sites import place
from halfstep.doctor.verdict import CERTAIN, POSSIBLE, Finding, Rule
from halfstep.formats import torch_dtype

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, RoundedCount

_EXACT = {"fp16": 2048, "bf16": 256}
SHARE = 0.05
MANY = 0.2
_CHANGE = (
    "- positions = torch.arange(length, dtype=inputs.dtype)",
    "+ positions = torch.arange(length, dtype=torch.float32)",
    "+ # and cast only the sines and cosines that are computed from them",
)
_SUM = re.compile(r"(\bcumsum\([^()]*)\)")
_NAMES_A_FORMAT = re.compile(r"\.(to|half|bfloat16|type|type_as)\(|dtype")


def judge(evidence: Evidence) -> Finding | None:
    """Find whole numbers that rounding to a half-precision format has changed."""
    for each in evidence.rounded:
        if each.changed < SHARE * each.count:
            continue
        if each.of_waves:
            return _of_waves(each)
        return Finding(
            summary=f"{each.format} changes {each.changed} of these {each.count} whole numbers, "
            f"because it cannot represent all whole numbers above {_EXACT[each.format]}: different "
            "positions or timesteps can become equal",
            facts=(
                f"{each.distinct} of {each.count} values remain distinct, up to {each.largest:g}",
                f"rounded {place(each.module, each.site)}",
            ),
            change=_change(each),
            confidence=CERTAIN if each.distinct < each.count else POSSIBLE,
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


def _of_waves(rounded: RoundedCount) -> Finding:
    apart = rounded.largest * torch.finfo(torch_dtype(rounded.format)).eps
    return Finding(
        summary=f"sines and cosines are computed from angles in {rounded.format}, which represents "
        f"only every {apart:.2g} radians near {rounded.largest:g}, the largest: the waves of "
        f"{rounded.changed} of {rounded.count} angles are noise",
        facts=(f"angles computed {place(rounded.module, rounded.site)}",),
        change=_change(rounded),
        confidence=CERTAIN if rounded.changed > MANY * rounded.count else POSSIBLE,
        site=rounded.site,
        module=rounded.module,
    )


def _change(rounded: RoundedCount) -> tuple[str, ...]:
    """Return the change; if the line names no format, autocast casts the positions there."""
    line = rounded.site.text if rounded.site is not None else ""
    summed = _SUM.sub(r"\1, dtype=torch.float32)", line)
    if summed != line:
        return (f"- {line}", f"+ {summed}")
    if not line or _NAMES_A_FORMAT.search(line):
        return _CHANGE
    return (
        f"- {line}",
        "+ with torch.autocast(device_type, enabled=False):  # autocast rounds the positions here",
        f"+     {line}",
    )


RULE = Rule(
    code="POSITIONS_IN_HALF",
    name="positions in half precision",
    rows=(57,),
    citations=("NVIDIA/Megatron-LM#535", "EleutherAI/gpt-neox#1003"),
    needs=frozenset({"rounded", "static"}),
    judge=judge,
)
