"""The output for a sample depends on other samples of the batch, by a mistake in a layout.

A layer takes the samples for positions of a sequence, because the order of its dimensions is not
that of its input; or a view cuts the samples apart, because it does not move a dimension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.influence import Mixing


def judge(evidence: Evidence) -> Finding | None:
    """Find samples that a layer or a view mixes."""
    found = evidence.of(Influence).mixing
    if found is None:
        return None
    layer = found.how == "sequence"
    where = (
        f"{found.at.kind} takes the {found.samples} samples of its input of shape "
        f"{_text(found.given)} for positions of a sequence, because its batch_first is False"
        if layer
        else f"a view of shape {_text(found.given)} as {_text(found.at.shape)} cuts the "
        f"{found.samples} samples apart"
    )
    return Finding(
        summary=f"the output for one sample depends on other samples of the batch: {where}",
        facts=(
            (
                f"with another sample in place of sample {found.changed}, the outputs for "
                f"{_samples(found)} change"
            ),
            *(() if found.own else (f"the output for sample {found.changed} itself does not",)),
        ),
        change=_of_layer(found) if layer else _of_view(found),
        confidence=LIKELY,
        site=found.at.site,
        module=found.at.module,
    )


def _of_layer(found: Mixing) -> tuple[str, ...]:
    kind = found.at.kind
    return (
        (
            f"+ # create the {kind} with batch_first=True: its input has the shape "
            "(samples, positions, features)"
        ),
    )


def _of_view(found: Mixing) -> tuple[str, ...]:
    at = next((at for at, size in enumerate(found.given) if size == found.samples), None)
    if at:
        return (
            (
                "+ # move the dimension of the samples first, then merge the others: "
                f".transpose(0, {at}).reshape({found.samples}, -1)"
            ),
        )
    return (
        "+ # swap dimensions with transpose() or permute(): a view keeps the order of elements",
    )


def _samples(found: Mixing) -> str:
    shown = [str(each) for each in found.others[:4]]
    more = ", ..." * (len(found.others) > len(shown))
    return f"sample{'s' * (len(found.others) > 1)} {', '.join(shown)}{more}"


def _text(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


RULE = Rule(
    code="SAMPLES_MIXED",
    name="samples of a batch that a layer or a view mixes",
    rows=(35,),
    citations=("salesforce/cove#10", "graykode/nlp-tutorial#38", "timbmg/Sentence-VAE#15"),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
