"""A loss is multiplied by the loss scale twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a call of `scaler.scale` on a loss that contains a scaled loss."""
    # A loss of gradients, such as a gradient penalty, has its own rule.
    if evidence.loop.of("grad"):
        return None
    for _, event in evidence.loop.of("scale"):
        if event.facts["already"]:
            share = evidence.loop.share(event, "already")
            return Finding(
                summary="scaler.scale() multiplies a loss that contains an already scaled loss: "
                "the gradients of the inner loss are multiplied by the loss scale twice, but "
                "divided by it only once",
                facts=(f"{share}, scaler.scale() was given a loss that it had multiplied before",),
                change=(
                    "+ # call scaler.scale() once, on the whole loss:",
                    "+ scaler.scale(loss).backward()",
                ),
                site=event.site,
            )
    return None


RULE = Rule(
    code="LOSS_SCALED_TWICE",
    name="a loss that is scaled twice",
    rows=(6,),
    citations=("docs.pytorch.org/docs/stable/notes/amp_examples",),
    needs=frozenset({"loop"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH", "SCALE_COLLAPSED"),
)
