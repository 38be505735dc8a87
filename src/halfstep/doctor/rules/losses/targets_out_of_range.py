"""Targets of a binary cross entropy are outside 0 to 1, for example masks with values up to 255."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import argument
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find targets that are not probabilities."""
    for each in evidence.targets:
        if each.is_of_probabilities:
            continue
        is_mask = each.lowest == 0 and each.highest == 255
        # The program's name of a loss module is unknown.
        given = argument(each.site.text, None, 2, 1) if each.site else ""
        name = given if given.isidentifier() else "targets"
        return Finding(
            summary=f"{each.loss} gets targets from {each.lowest:g} to {each.highest:g}, and needs "
            "targets from 0 to 1; with others, the loss falls below 0 without limit",
            facts=_losses(evidence),
            change=(
                (
                    f"+ {name} = {name} / 255  # before this line"
                    if is_mask
                    else f"+ {name} = ({name} > 0).float()  # before this line"
                ),
            ),
            confidence=LIKELY,
            site=each.site,
        )
    return None


def _losses(evidence: Evidence) -> tuple[str, ...]:
    losses = [each.loss for each in evidence.numbers.steps if each.loss is not None]
    if not losses:
        return ()
    return (f"the first loss was {losses[0]:.4g}, the last one {losses[-1]:.4g}",)


RULE = Rule(
    code="TARGETS_OUT_OF_RANGE",
    name="targets outside 0 to 1",
    rows=(35,),
    citations=("milesial/Pytorch-UNet#78", "milesial/Pytorch-UNet#84"),
    needs=frozenset({"targets", "numbers"}),
    judge=judge,
    explains=("ACTIVATIONS_TOO_LARGE", "SCALE_COLLAPSED"),
)
