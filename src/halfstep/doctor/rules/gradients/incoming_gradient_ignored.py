"""The backward of an autograd function ignores the gradient that it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a backward that returns the same gradients whatever it is given."""
    for found in evidence.of(Influence).chains:
        line = found.site.text if found.site else ""
        change = (f"- {line}", f"+ {found.change}") if found.change else ()
        return Finding(
            summary=f"backward of {found.name} returns the same gradient for each gradient that "
            "it is given, so whatever comes after this function in the model does not count: by "
            "the chain rule, its result is a product with the given gradient",
            facts=(
                f"its {found.elements} elements are the same with the loss multiplied by -2",
                f"{counted(found.calls, 'call')} of {found.name} in the last step",
            ),
            change=change
            or ("+ # multiply each gradient that backward returns by the gradient that it gets",),
            confidence=LIKELY,
            site=found.site,
        )
    return None


RULE = Rule(
    code="INCOMING_GRADIENT_IGNORED",
    name="a backward that ignores the gradient that it is given",
    rows=(58,),
    citations=("docs.pytorch.org/docs/stable/notes/extending",),
    needs=frozenset({"influence"}),
    judge=judge,
    explains=("GRADIENTS_VANISH", "LEARNING_RATE_TOO_HIGH"),
    harmless=True,
)
