"""A sample goes into the loss without a gradient: `sample()` in place of `rsample()`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.parameters import ParameterLedger
from halfstep.doctor.signals.values.drawn import Draw, Draws
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 3
_SAMPLE = re.compile(r"\.sample\(")
_NORMAL = re.compile(r"torch\.normal\(([\w.]+), ?([\w.]+)\)")


def judge(evidence: Evidence) -> Finding | None:
    """Find samples in a loss that trains the parameters of their distribution only in other ways.

    A loss that trains none of them may need the samples only, such as that of a critic.
    """
    missing = evidence.of(ParameterLedger).without_gradient()
    for draw in evidence.of(Draws).lines:
        is_untrained = bool(draw.parameters) and missing.issuperset(draw.parameters)
        if draw.enters and draw.count >= _FEWEST and (draw.reached or is_untrained):
            return _finding(draw, is_untrained=is_untrained)
    return None


def _finding(draw: Draw, *, is_untrained: bool) -> Finding:
    is_normal = draw.kind == "normal"
    what = "torch.normal()" if is_normal else f"{draw.kind}.sample()"
    how = "has a gradient of 0" if is_normal else "has no gradient"
    consequence = (
        "the parameters behind it get no gradients at all"
        if is_untrained
        else "the parameters behind it learn only from the other terms of the loss"
    )
    return Finding(
        summary=f"the loss depends on a sample of {what}, which {how} for the parameters of its "
        f"distribution: {consequence}",
        facts=(
            f"{counted(draw.count, 'sample')} drawn from parameters that require gradients",
            "no log-probability of the samples is computed, which would carry a gradient",
        ),
        change=_change(draw),
        confidence=LIKELY,
        site=draw.site,
    )


def _change(draw: Draw) -> tuple[str, ...]:
    line = draw.site.text if draw.site else ""
    if draw.kind == "normal":
        by = r"(\1 + \2 * torch.randn_like(\1))"
        if len(_NORMAL.findall(line)) == 1:
            return (f"- {line}", f"+ {_NORMAL.sub(by, line)}")
        return ("+ # draw with a gradient: mean + std * torch.randn_like(mean)",)
    if len(_SAMPLE.findall(line)) == 1:
        return (f"- {line}", f"+ {_SAMPLE.sub('.rsample(', line)}")
    return ("+ # draw with a gradient: rsample() in place of sample()",)


RULE = Rule(
    code="DRAW_WITHOUT_GRADIENT",
    name="a sample without a gradient in the loss",
    rows=(11,),
    citations=("jankrepl/deepdow#106", "Unity-Technologies/ml-agents#5546"),
    needs=frozenset({"drawn", "parameters"}),
    judge=judge,
    explains=("PART_WITHOUT_GRADIENT",),
    harmless=True,
)
