"""A softmax before a loss normalises over another dimension than that of the classes.

Over the samples of a batch, for example, the probabilities of one sample do not sum to 1, and they
depend on the other samples.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.influence import WrongSoftmax

_DIM = re.compile(
    r"(softmax\((?:[^()]|\([^()]*\))*?,\s*(?:dim\s*=\s*)?|\.(?:log_)?softmax\((?:dim\s*=\s*)?|Softmax\((?:dim\s*=\s*)?)-?\d+(?=\s*\))"
)


def judge(evidence: Evidence) -> Finding | None:
    """Find a softmax whose dimension is not that of the classes of its loss."""
    for found in evidence.of(Influence).softmaxes:
        name = found.at.op.strip("_")
        over = "the samples of the batch" if found.dim == 0 else f"dimension {found.dim}"
        return Finding(
            summary=f"{name} of shape {found.at.shape} normalises over {over}, but the classes of "
            f"the loss are in dimension {found.classes}: the probabilities of one sample do not "
            "sum to 1",
            facts=(f"its result goes into {found.loss}",),
            change=_change(found, name),
            confidence=LIKELY,
            site=found.at.site,
            module=found.at.module,
        )
    return None


def _change(found: WrongSoftmax, name: str) -> tuple[str, ...]:
    line = found.at.site.text if found.at.site else ""
    changed = _DIM.sub(rf"\g<1>{found.classes}", line)
    if changed != line:
        return (f"- {line}", f"+ {changed}")
    return (f"+ # {name}(outputs, dim={found.classes})",)


RULE = Rule(
    code="SOFTMAX_OVER_WRONG_DIMENSION",
    name="a softmax over another dimension than that of the classes",
    rows=(35,),
    citations=("perone/euclidesdb#2", "batra-mlp-lab/visdial-challenge-starter-pytorch#1"),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
