"""`backward()` runs inside the autocast block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a backward under autocast."""
    inside = [event for _, event in evidence.loop.of("backward") if event.facts["autocast"]]
    if not inside:
        return None
    event = inside[0]
    return Finding(
        summary="backward() runs under autocast: autocast casts the inputs of backward operators "
        "again, and its cache keeps half-precision copies of weights from before the update",
        facts=(f"{evidence.loop.share(event, 'autocast')}, backward() ran under autocast",),
        change=(
            "  with torch.autocast(...):",
            "      loss = criterion(model(inputs), labels)",
            f"+ # after the block: {event.site.text if event.site else 'loss.backward()'}",
        ),
        confidence=POSSIBLE,  # many programs train well all the same
        site=event.site,
    )


RULE = Rule(
    code="BACKWARD_UNDER_AUTOCAST",
    name="backward inside autocast",
    rows=(13,),
    citations=("pytorch/pytorch#120376",),
    needs=frozenset({"loop"}),
    judge=judge,
)
