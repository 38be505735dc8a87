"""torch refuses an operator whose operands have different formats, one of them half precision."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_REFUSED = re.compile(
    r"(same|source and destination) (scalar )?d?types?|should be the same|must be the same"
    r"|expected (scalar type|dtype)|mixed dtype|does not match weight dtype"
    r"|expected self\.dtype to be equal to src\.dtype",
    re.IGNORECASE,
)
"""The wordings of torch's errors about formats."""
_FORMAT = re.compile(
    r"(Half|BFloat16|Float|Double|float16|float32|float64)(?:Tensor)?\b", re.IGNORECASE
)
_NAMES = {
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float": "fp32",
    "float32": "fp32",
    "double": "fp64",
    "float64": "fp64",
}
_HALF_NAMES = {format_name(each) for each in HALVES}
_WRITES = re.compile(r"destination|source|scatter|index_|`end`", re.IGNORECASE)


def judge(evidence: Evidence) -> Finding | None:
    """Find torch's error about operands of different formats."""
    ending = evidence.ending
    message = ending.message.partition("\n")[0]
    if ending.function or not _REFUSED.search(message):
        return None
    formats = list(dict.fromkeys(_NAMES[each.lower()] for each in _FORMAT.findall(message)))
    writes = _WRITES.search(message) is not None
    if formats and not _HALF_NAMES & {*formats}:
        return None
    if not formats and not writes:
        return None
    half = next((each for each in formats if each in _HALF_NAMES), "fp16")
    model = next((each for each in evidence.static.models if half in each.formats), None)
    text = ending.site.text if ending.site else "..."
    cast = "half" if half == "fp16" else "bfloat16"
    change: tuple[str, ...]
    if writes:
        summary = "a tensor is written into a tensor of another format"
        change = (
            f"- {text}",
            "+ # the same line with its source cast: source.to(destination.dtype)",
        )
    elif model is not None:
        summary = f"the parameters of {model.kind} are {half}, and an operand is not"
        change = (
            f"- model.{cast}()  # or another cast of the parameters",
            f"+ with torch.autocast(device_type, dtype=torch.{_dtype(half)}):",
            "+     loss = criterion(model(inputs), targets)  # with fp32 parameters and inputs",
            f"+ # or cast the inputs, too: model(inputs.{cast}())",
        )
    else:
        article = "an" if half == "fp16" else "a"
        summary = (
            f"{article} {half} tensor, such as a result of autocast, meets an fp32 tensor where "
            "autocast is off, or in an operator that autocast does not cast"
        )
        change = (
            f"- {text}",
            f"+ # the same line with its {half} tensor in fp32: x.float()",
        )
    return Finding(summary=summary, facts=(message,), change=change, site=ending.site)


def _dtype(half: str) -> str:
    return "float16" if half == "fp16" else "bfloat16"


RULE = Rule(
    code="OPERANDS_OF_TWO_FORMATS",
    name="operands of two formats",
    rows=(60,),
    citations=(
        "OpenBMB/MiniCPM-V#234",
        "open-mmlab/mmdetection3d#1842",
        "Yu-Fangxu/COLD-Attack#20",
    ),
    needs=frozenset({"ending", "static"}),
    judge=judge,
)
