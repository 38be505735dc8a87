"""Targets are mirrored or turned apart from their inputs.

A random augmentation of an image and its mask must use the same random numbers. If it is called
once for each of them, it draws twice, and a part of the samples has a mask of another orientation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a loss whose turned targets fit many samples better."""
    for found in evidence.of(Influence).turned:
        return Finding(
            summary=f"{found.count} of {found.samples} samples of the last batch fit their target "
            f"far better if it is {found.how}: inputs and targets are not mirrored or turned "
            "together",
            facts=(
                (
                    f"the {found.measure} of the samples is {found.own:.3g}, and {found.best:.3g} "
                    "with the better of both targets"
                ),
            ),
            change=(
                "+ # draw once for a sample, and use the result for its input and its target, such",
                "+ # as with torchvision.transforms.v2, which takes both in one call",
            ),
            confidence=LIKELY,
            site=found.site,
        )
    return None


RULE = Rule(
    code="TARGETS_TURNED",
    name="targets that are mirrored apart from their inputs",
    rows=(11,),
    citations=("albumentations-team/albumentations#1056", "wassname/pipe-segmentation#1"),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
