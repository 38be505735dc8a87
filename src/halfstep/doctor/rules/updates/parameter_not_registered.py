"""A module keeps a tensor that should be trained, but it is no parameter of the module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.classes import without_parameter
from halfstep.doctor.record.source import difference
from halfstep.doctor.signals.ledgers.parameters import ParameterLedger
from halfstep.doctor.signals.program.attributes import Attribute, Attributes
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 3  # steps


def judge(evidence: Evidence) -> Finding | None:
    """Find a tensor with gradients that stays the same, because no optimizer can get it."""
    if max((each.steps for each in evidence.of(ParameterLedger).owners), default=0) < _FEWEST:
        return None
    for each in evidence.of(Attributes).tensors:
        behind = "" if each.is_leaf else ", the result of an operator on a parameter"
        what = "a tensor" + (behind if each.is_parameter else "")
        return Finding(
            summary=f"{each.name} of {each.module} is {what}, not an nn.Parameter: it gets "
            "gradients, but model.parameters() does not contain it, so no optimizer updates it",
            facts=(
                f"its shape is {each.shape}",
                "it had the same values in all steps, and a checkpoint does not contain it",
            ),
            change=_change(each),
            confidence=LIKELY,
            site=each.site,
            module=each.path,
        )
    return None


def _change(attribute: Attribute) -> tuple[str, ...]:
    """Return the change that makes the parameter from the final values."""
    target, equals, value = attribute.made_by.partition(" = ")
    if not equals or "\n" in value:
        return (f"+ # make it a parameter: self.{attribute.name} = nn.Parameter(...)",)
    value = value.replace(", requires_grad=True", "")
    if attribute.is_parameter:
        value = without_parameter(value) or f"({value}).detach()"
    return difference(attribute.made_by, f"{target} = nn.Parameter({value})")


RULE = Rule(
    code="PARAMETER_NOT_REGISTERED",
    name="a tensor to train that is no parameter",
    rows=(11,),
    citations=("pytorch/pytorch#17484", "pytorch/pytorch#20089"),
    needs=frozenset({"attributes", "parameters"}),
    judge=judge,
    harmless=True,
)
