"""`backward()` runs inside the autocast block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a backward under autocast."""
    inside = [event for _, event in evidence.loop.of("backward") if event.facts["autocast"]]
    if not inside:
        return None
    event = inside[0]
    lost = _lost(evidence)
    facts = [f"{evidence.loop.share(event, 'autocast')}, backward() ran under autocast"]
    if lost:
        facts.append(
            f"the gradients of {counted(len(lost), 'parameter')} were 0, and are not when the "
            f"backward() of the last step runs without autocast: {', '.join(lost[:3])}"
        )
    return Finding(
        summary="backward() runs under autocast: autocast casts the inputs of backward operators "
        "again, and its cache keeps half-precision copies of weights from before the update",
        facts=tuple(facts),
        change=(
            "  with torch.autocast(...):",
            "      loss = criterion(model(inputs), labels)",
            f"+ # after the block: {event.site.text if event.site else 'loss.backward()'}",
        ),
        confidence=LIKELY if lost else POSSIBLE,  # many programs train well all the same
        site=event.site,
    )


def _lost(evidence: Evidence) -> list[str]:
    """Return parameters whose gradients were 0, but are not in a replay without it."""
    last = max((each.iteration for each in evidence.samples), default=-1)
    late = [each for each in evidence.samples if each.iteration == last]
    zero = {each.parameter for each in late if each.gradient_zeros == 1}
    agreements = evidence.precision.agreements
    return [each.parameter for each in agreements if each.norm > 0 and each.parameter in zero]


RULE = Rule(
    code="BACKWARD_UNDER_AUTOCAST",
    name="backward inside autocast",
    rows=(13,),
    citations=("pytorch/pytorch#120376",),
    needs=frozenset({"loop", "samples", "precision"}),
    judge=judge,
)
