"""A model is given two inputs that should differ, such as two views, and that are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.data.equal import EqualInputs, EqualPair
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 8  # steps


def judge(evidence: Evidence) -> Finding | None:
    """Find two inputs that are equal in each step, and are made of different data."""
    for pair in evidence.of(EqualInputs).pairs:
        if pair.steps >= _FEWEST:
            return _finding(pair)
    return None


def _finding(pair: EqualPair) -> Finding:
    if pair.is_one:
        return _of_one(pair)
    if pair.joined:
        what, effect = "the two halves of a batch", "the loss compares samples with themselves"
    elif pair.copies:
        what = "the inputs of a model and of its copy, of which one is not trained,"
        effect = "only their weights make a difference between their results"
    elif pair.other is None:
        what, effect = "two inputs of a model", "the model compares samples with themselves"
    else:
        what, effect = "the inputs of two calls of a model in one step", "so are their results"
    return Finding(
        summary=f"{what} are equal in each step, although they are not made of the same data: "
        f"{effect}",
        facts=(
            f"the elements that were compared are equal in all {pair.steps} examined steps",
            *((f"the other one: {pair.other.text}",) if pair.other and not pair.joined else ()),
        ),
        change=(
            "+ # draw new random numbers for each view, with no seed between them",
            "+ # keep a copy of each array in a memory: states.copy(), states.clone()",
            "+ # give a copy to a function that changes its input in place; cut texts before what",
            "+ # differs in them is cut off",
            *((f"  {pair.site.text}",) if pair.site else ()),
        ),
        confidence=LIKELY,
        site=pair.site,
    )


def _of_one(pair: EqualPair) -> Finding:
    if pair.joined:
        what = "both halves of a batch are"
    elif pair.other is None:
        what = "two inputs of a model are"
    else:
        what = "two calls of a model in one step get"
    return Finding(
        summary=f"{what} one tensor of the loader's batch, and nothing reads another tensor of its "
        "shape in this batch: the loss compares samples with themselves",
        facts=(
            f"so it is in all {pair.steps} examined steps",
            *((f"the other one: {pair.other.text}",) if pair.other and not pair.joined else ()),
        ),
        change=(
            "+ # use each of the two tensors of the batch once",
            *((f"  {pair.site.text}",) if pair.site else ()),
        ),
        confidence=LIKELY,
        site=pair.site,
    )


RULE = Rule(
    code="EQUAL_INPUTS",
    name="two inputs that should differ and are equal",
    rows=(60,),
    citations=(
        "catalyst-team/catalyst#1278",
        "denisyarats/drq#28",
        "facebookresearch/DepthContrast#14",
    ),
    needs=frozenset({"equal_inputs"}),
    judge=judge,
    explains=("NO_GRADIENTS",),
    harmless=True,
)
