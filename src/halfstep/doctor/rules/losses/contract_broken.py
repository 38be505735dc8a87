"""A function is given values for which its result is not defined, and does not check them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.values.contracts import (
    ASCENDING,
    CORNERS,
    COUNTS,
    OBJECTS,
    SHARES,
    SIGNS,
    SYMMETRIC,
    TURNED,
    UNIT,
    Contract,
    Contracts,
)
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.record import Evidence

_FEW = 0.1
"""A smaller share of boxes or counts may be mistakes in the data."""
_HALF = 0.5
_TIES = 0.25
"""A smaller share of zeros among targets of an order may be ties."""
_SAYS = {
    CORNERS: (
        (
            "needs boxes as corners (x1, y1, x2, y2), and is given boxes with x2 < x1 or y2 < y1, "
            "whose areas are negative: they may be a centre or a corner, with width and height"
        ),
        '+ # torchvision.ops.box_convert({}, "cxcywh", "xyxy"), or from "xywh", for each argument',
    ),
    SIGNS: (
        (
            "needs targets of 1 and -1, and is given 1 and 0: a target of 0 is neither of the two "
            "cases, so these pairs are not told apart"
        ),
        "+ {0} = 2 * {0} - 1  # before this line",
    ),
    SHARES: (
        "needs targets from 0 to 1, and is given others, with which it falls without limit",
        "+ # {0} as 0 and 1, such as one_hot of the classes",
    ),
    COUNTS: (
        (
            "needs targets that are counts, and is given negative ones, with which it falls "
            "without limit"
        ),
        "+ # {0} as they were counted, without a mean that is subtracted",
    ),
    ASCENDING: (
        (
            "searches in halves, so it needs values in ascending order, and is given others: its "
            "result is undefined"
        ),
        "+ {0} = {0}.sort().values  # before this line",
    ),
    SYMMETRIC: (
        (
            "reads one triangle of a matrix that it takes for symmetric, and is given one whose "
            "triangles differ: its result is that of another matrix"
        ),
        "+ {0} = ({0} + {0}.mT) / 2  # before this line",
    ),
    OBJECTS: (
        (
            "takes class 0 for the background, and is given objects of class 0: the model learns "
            "that there is nothing where they are"
        ),
        "+ # count the classes of objects from 1, and make the model for one class more",
    ),
    UNIT: (
        (
            "gets the mean and the deviation of images from 0 to 1, and images with pixels far "
            "above 1, such as up to 255: its results are hundreds"
        ),
        "+ # before it v2.ToDtype(torch.float32, scale=True), ToTensor(), or a division by 255",
    ),
    TURNED: (
        (
            "moves the pixels of an image, and knows boxes and masks by their types: it is given "
            "plain tensors, and returns them as they are, where the image was before"
        ),
        "+ # {0} as tv_tensors.BoundingBoxes({0}, format=..., canvas_size=...), or tv_tensors.Mask",
    ),
}


def judge(evidence: Evidence) -> Finding | None:
    """Find arguments that are not of the kind that a function needs."""
    calls = evidence.of(Contracts).broken
    for each in calls:
        confidence = _confidence(each, calls)
        if not confidence:
            continue
        what, change = _SAYS[each.kind]
        mean = sum(each.shares) / len(each.shares)
        return Finding(
            summary=f"{each.name} {what}",
            facts=(
                f"{mean:.0%} of {each.argument}, in {counted(len(each.shares), 'examined call')}",
            ),
            change=(
                *((f"  {each.site.text}",) if each.site and each.site.text else ()),
                change.format(each.argument),
            ),
            confidence=confidence,
            site=each.site,
        )
    return None


def _confidence(call: Contract, calls: Sequence[Contract]) -> str:
    """Return how certain it is that a whole argument is of another kind; "" if it is not."""
    least, mean = min(call.shares), sum(call.shares) / len(call.shares)
    if call.kind == CORNERS:
        return _of_boxes(call, calls)
    if call.kind == SIGNS and call.name in {"margin_ranking_loss", "MarginRankingLoss"}:
        return POSSIBLE if mean >= _TIES else ""
    if call.kind == SIGNS:
        return LIKELY
    if call.kind in {COUNTS, OBJECTS, UNIT}:
        return LIKELY if mean >= _FEW else ""
    return LIKELY if call.kind == SHARES or least > 0 else ""


def _of_boxes(call: Contract, calls: Sequence[Contract]) -> str:
    """Return the same for boxes; a model that predicts corners may confuse them at first."""
    least = min(call.shares)
    if call.is_given and "loss" in call.name:
        return LIKELY if least >= _FEW else ""
    others = [
        each
        for each in calls
        if each.name == call.name and each.site == call.site and each.argument != call.argument
    ]
    if others:
        return LIKELY if min(least, *(min(each.shares) for each in others)) >= _FEW else ""
    return POSSIBLE if call.argument == "boxes" and least >= _HALF else ""


RULE = Rule(
    code="ARGUMENTS_OF_ANOTHER_KIND",
    name="values of another kind than a function needs",
    rows=(35,),
    citations=(
        "stevebottos/owl-vit-object-detection#14",
        "docs.pytorch.org/docs/stable/generated/torch.nn.SoftMarginLoss",
    ),
    needs=frozenset({"contracts"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH", "LOSS_WITHOUT_BOUND"),
)
