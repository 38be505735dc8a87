"""`scaler.unscale_()` is called twice on the same gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.order import second_unscale
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find two `unscale_` calls without a backward or an update between them."""
    second = second_unscale(evidence.loop)
    if second is None or not second.same:
        return None
    site = second.event.site
    return Finding(
        summary="scaler.unscale_() is called a second time on the same gradients: they are already "
        "divided by the loss scale, and the scaler refuses the second call",
        facts=(f"{evidence.loop.share(second.event, 'optimizer')}, this line called unscale_()",),
        change=(f"- {site.text}" if site else "- scaler.unscale_(optimizer)",),
        site=site,
    )


RULE = Rule(
    code="UNSCALED_TWICE",
    name="unscale_ twice on the same gradients",
    rows=(59,),
    citations=("docs.pytorch.org/docs/stable/notes/amp_examples",),
    needs=frozenset({"loop"}),
    judge=judge,
)
