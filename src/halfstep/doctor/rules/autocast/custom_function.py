"""A custom autograd function mixes half-precision and fp32 tensors under autocast."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.formats.limits import HALVES

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_MISMATCH = re.compile(
    r"scalar type|dtype|expected .*(Half|Float|BFloat16)|not implemented for", re.IGNORECASE
)
_CHANGE = (
    "+ @torch.amp.custom_fwd(device_type=device_type, cast_inputs=torch.float32)",
    "  def forward(ctx, ...):",
    "+ @torch.amp.custom_bwd(device_type=device_type)",
    "  def backward(ctx, gradient):",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find a format error in a custom autograd function, or inf or NaN that fp32 avoids."""
    ending = evidence.ending
    if ending.function and _MISMATCH.search(ending.message):
        return Finding(
            summary=f"the function {ending.function} mixes formats: its forward pass ran in half "
            "precision under autocast, and its backward pass uses these half tensors outside "
            "autocast",
            facts=(f"{ending.kind}: {ending.message.splitlines()[0]}",),
            change=_CHANGE,
            site=ending.site,
        )
    fp32 = {each.iteration for each in evidence.replays if each.name == "fp32" and each.finite}
    for birth in evidence.births:
        formats = {each.format for each in (*birth.inputs, birth.output)}
        if birth.culprit and birth.function and fp32 and formats & HALVES:
            return Finding(
                summary=f"{birth.called} in the {birth.phase} pass of "
                f"the function {birth.function} gives {birth.value} in half precision; in fp32 the "
                "step is finite",
                facts=(birth.appears,),
                change=_CHANGE,
                confidence=LIKELY,
                site=birth.user_site,
                module=birth.module,
            )
    return None


RULE = Rule(
    code="CUSTOM_FUNCTION_UNDER_AUTOCAST",
    name="a custom autograd function under autocast",
    rows=(38,),
    citations=("pytorch/pytorch#87979", "pytorch/pytorch#38487"),
    needs=frozenset({"ending", "births", "replays"}),
    judge=judge,
    explains=("EXP_OVERFLOW", "ACTIVATIONS_TOO_LARGE", "LOG_OF_ZERO", "ROOT_AT_ZERO"),
)
