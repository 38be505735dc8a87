"""A statement without an effect: a result is dropped, or a method or attribute is not meant so.

Operators such as `masked_fill()` and `clamp()` return a new tensor; only their twins with "_" at
the end of the name change the tensor itself. A method without brackets is not called, and an
attribute of another name, such as `require_grad`, is one that torch does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.sites import without_comment
from halfstep.doctor.record.source import difference
from halfstep.doctor.signals.program.effects import DROPPED, UNCALLED
from halfstep.doctor.signals.program.idle import ATTRIBUTE, Unused, UnusedValues
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find such a statement that runs in the training."""
    for each in evidence.of(UnusedValues).found:
        if each.kind == UNCALLED and without_comment(each.statement).strip() == each.name:
            return Finding(
                summary=f"this statement names the method {each.name}, and does not call it: "
                "nothing happens",
                facts=("a method without brackets is a value, which the statement drops",),
                change=difference(each.statement, f"{each.statement}()"),
                confidence=CERTAIN,
                site=each.site,
            )
        if each.kind == ATTRIBUTE:
            return Finding(
                summary=f"this statement sets {each.name}, which torch does not know and "
                f"nothing reads: {each.given[0]} stays as it is",
                facts=("Python adds any attribute to an object without an error",),
                change=difference(
                    each.statement, each.statement.replace(f".{each.name}", f".{each.given[0]}", 1)
                ),
                confidence=CERTAIN,
                site=each.site,
            )
        if each.kind == DROPPED:
            return Finding(
                summary=f"this statement drops the result of {each.name}, which is a new tensor: "
                "nothing changes",
                facts=("it runs in the training, and assigns its result to no name",),
                change=_change(each),
                confidence=LIKELY,
                site=each.site,
            )
    return None


def _change(each: Unused) -> tuple[str, ...]:
    if each.given:
        return difference(each.statement, f"{each.given[0]} = {each.statement}")
    if f".{each.name}(" in each.statement:
        in_place = each.statement.replace(f".{each.name}(", f".{each.name}_(", 1)
        return difference(each.statement, in_place)
    return (f"+ # use the result of {each.name}",)


RULE = Rule(
    code="RESULT_DROPPED",
    name="a statement without an effect",
    rows=(35,),
    citations=("facebookresearch/ParlAI#3068", "espnet/espnet#1273"),
    needs=frozenset({"unused"}),
    judge=judge,
    harmless=True,
)
