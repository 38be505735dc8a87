"""The backward of an autograd function is not the derivative of its forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a backward that gives another derivative."""
    ignoring = {each.name for each in evidence.of(Influence).chains}
    for found in evidence.of(Influence).derivatives:
        if found.name in ignoring:
            continue
        if found.how == "elements":
            measured = (
                f"at {found.likeness:.0%} of the elements at which the forward has a slope, its "
                "result is off by more than a fifth"
            )
        else:
            measured = (
                "along random directions, the cosine between its result and the change of the "
                f"forward is {found.likeness:.2f}"
            )
        return Finding(
            summary=f"backward of {found.name} is not the derivative of its forward: with inputs a "
            "little larger and smaller, the results change in another way than backward says",
            facts=(measured, f"{counted(found.calls, 'call')} of {found.name} in the last step"),
            change=(
                f"+ # torch.autograd.gradcheck({found.name}.apply, inputs) compares the two, for",
                "+ # inputs of torch.float64 that require gradients",
            ),
            confidence=LIKELY,
            site=found.site,
        )
    return None


RULE = Rule(
    code="BACKWARD_NOT_THE_DERIVATIVE",
    name="a backward that is not the derivative of its forward",
    rows=(58,),
    citations=("KeKsBoTer/torch-dwt#2", "docs.pytorch.org/docs/stable/notes/gradcheck"),
    needs=frozenset({"influence"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH",),
    harmless=True,
)
