"""A value of a training step that nothing reads, such as a mask that is computed and not applied.

It is a name that is assigned a value, a field of a batch beside others that are read, or a
parameter of a function. Another value may be used in its place: the loss without its weights, the
clean inputs and not the noisy ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.program.effects import FIELD, PARAMETER, VALUE
from halfstep.doctor.signals.program.idle import (
    FLAGS,
    LENGTHS,
    MASK,
    REAL,
    WHOLE,
    Unused,
    UnusedValues,
)
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_WHAT = {
    LENGTHS: "the lengths of the samples in {partner}, after which it is padded",
    MASK: "a mask of the places where {partner} is padded",
    FLAGS: "0 or 1 for each sample",
    WHOLE: "whole numbers, other ones for each sample",
    REAL: "numbers, other ones for each sample",
}


def judge(evidence: Evidence) -> Finding | None:
    """Find such a value; those that show by themselves what they are for come first."""
    found = [each for each in evidence.of(UnusedValues).found if _counts(each)]
    found.sort(key=lambda each: not _is_known(each))
    for each in found:
        return Finding(
            summary=_summary(each),
            facts=_facts(each),
            change=_change(each),
            confidence=LIKELY if _is_known(each) else POSSIBLE,
            site=each.site,
        )
    return None


def _counts(each: Unused) -> bool:
    """Return whether a value is one that a program hardly leaves out on purpose.

    A batch may contain what a training does not need: classes, names of samples, other images.
    """
    if each.kind != FIELD:
        return each.kind in {VALUE, PARAMETER}
    if each.holds == REAL:
        return sum(size > 1 for size in each.shape) == 1
    return each.holds in {LENGTHS, MASK, FLAGS} or each.is_drawn_again


def _is_known(each: Unused) -> bool:
    """Return whether it is clear that the loss should depend on a value."""
    return each.holds in {LENGTHS, MASK} or each.is_drawn_again or each.is_overwritten


def _summary(each: Unused) -> str:
    where = f" of {each.function}()" if each.function else ""
    if each.kind == VALUE and each.is_overwritten:
        return (
            f"nothing reads this value of {each.name}: the next statement that uses the name gives "
            "it another value, so the loss does not depend on the first one"
        )
    if each.kind == VALUE:
        return (
            f"each step computes {each.name}, and nothing reads it: the loss does not depend on it"
        )
    beside = " and ".join(each.fellows[:3])
    what = f"the parameter {each.name}{where}" if each.kind == PARAMETER else each.name
    return f"nothing reads {what}, only {beside} beside it: the loss does not depend on {each.name}"


def _facts(each: Unused) -> tuple[str, ...]:
    facts = []
    if each.holds:
        what = _WHAT[each.holds].format(partner=each.partner)
        facts.append(f"{each.name}, of shape {each.shape}, contains {what}")
    if each.is_drawn_again:
        facts.append("the step draws as many numbers anew, which the loss uses")
    return (*facts, f"no line that runs after this one reads {each.name}")


def _change(each: Unused) -> tuple[str, ...]:
    if each.kind == VALUE and each.is_overwritten:
        return (f"+ # add to {each.name}, or use another name: both values should be read",)
    if each.holds == LENGTHS:
        return (f"+ # leave out what lies after the lengths in {each.name}",)
    if each.holds == MASK:
        return (f"+ # apply the mask {each.name}: to the losses, the mean or the attention",)
    if each.is_drawn_again:
        return (f"+ # use {each.name} in place of the numbers that are drawn anew",)
    return (f"+ # use {each.name} where the loss is computed, or remove it",)


RULE = Rule(
    code="VALUE_NEVER_READ",
    name="a value of the step that nothing reads",
    rows=(35,),
    citations=(
        "rewind-reward/ReWiND#1",
        "fchollet/deep-learning-with-python-notebooks#295",
    ),
    needs=frozenset({"unused"}),
    judge=judge,
    harmless=True,
)
