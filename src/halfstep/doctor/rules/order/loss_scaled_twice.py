"""A loss is multiplied by the loss scale twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Event, Evidence, Shape


def judge(evidence: Evidence) -> Finding | None:
    """Find a call of `scaler.scale` on a loss that contains a scaled loss."""
    # A loss of gradients, such as a gradient penalty, has its own rule.
    if evidence.loop.of("grad"):
        return None
    for shape, event in evidence.loop.of("scale"):
        if event.facts["already"]:
            share = evidence.loop.share(event, "already")
            return Finding(
                summary="scaler.scale() multiplies a loss that contains an already scaled loss: "
                "the gradients of the inner loss are multiplied by the loss scale twice, but "
                "divided by it only once",
                facts=(f"{share}, scaler.scale() was given a loss that it had multiplied before",),
                change=_change(shape, event),
                site=event.site,
            )
    return None


def _change(shape: Shape, event: Event) -> tuple[str, ...]:
    """Return what to do with the first of the two calls."""
    inner = next((each.site for each in shape.of("scale") if not each.facts["already"]), None)
    if inner is None or inner == event.site:
        return ("+ # call scaler.scale() once, on the whole loss",)
    return (
        "+ # call scaler.scale() once, on the whole loss: leave it out in the line",
        f"+ # {inner.text}",
    )


RULE = Rule(
    code="LOSS_SCALED_TWICE",
    name="a loss that is scaled twice",
    rows=(6,),
    citations=("docs.pytorch.org/docs/stable/notes/amp_examples",),
    needs=frozenset({"loop"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH", "SCALE_COLLAPSED"),
)
