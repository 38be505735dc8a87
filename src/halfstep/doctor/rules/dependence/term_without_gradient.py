"""A term of the loss is computed from the model, but gives its parameters no gradient.

The term moves the value of the loss, and trains nothing: it goes through argmax, item(), NumPy or a
comparison, or is detached, or is computed without gradients.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.influence import LostTerm

_DETACH = re.compile(r"\.detach\(\)|\.data\b(?!\.)")


def judge(evidence: Evidence) -> Finding | None:
    """Find a term without gradients."""
    for found in evidence.of(Influence).terms:
        return Finding(
            summary=f"a term of the loss gives no gradient, although it is computed from the "
            f"model: {_reason(found)}; it trains nothing",
            facts=(f"its value in the last step: {found.value:.3g}",),
            change=_change(found),
            confidence=LIKELY,
            site=found.at.site,
            module=found.at.module,
        )
    return None


def _reason(found: LostTerm) -> str:
    return {
        "number": "item() makes a Python number of it",
        "detach": "it is detached",
        "no_grad": "it is computed without gradients, as under torch.no_grad()",
        "create_graph": "it is a gradient that autograd.grad() returns without create_graph=True",
    }.get(found.how, f"it goes through {found.how}(), which has no gradient")


def _change(found: LostTerm) -> tuple[str, ...]:
    line = found.at.site.text if found.at.site else ""
    if found.how == "number" and line.count(".item()") == 1:
        return (f"- {line}", f"+ {line.replace('.item()', '')}")
    if found.how == "detach" and _DETACH.search(line):
        return (f"- {line}", f"+ {_DETACH.sub('', line)}")
    return {
        "number": ("+ # add the tensor itself; item() only for what is printed",),
        "no_grad": (f"  {line}", "+ # outside of torch.no_grad()"),
        "create_graph": ("+ # torch.autograd.grad(..., create_graph=True)",),
    }.get(
        found.how,
        ("+ # a differentiable term: probabilities for argmax(), sigmoid() for a comparison",),
    )


RULE = Rule(
    code="TERM_WITHOUT_GRADIENT",
    name="a term of the loss that gives no gradient",
    rows=(11,),
    citations=("yifita/deep_cage#16",),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
