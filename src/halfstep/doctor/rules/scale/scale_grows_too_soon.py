"""The loss scale is raised after a few steps, so that many steps overflow and are skipped."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import difference, statement, with_argument
from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.sites import Site

SKIPS = 4
SHARE = 0.05
_DEFAULT = 2000  # of GradScaler


def judge(evidence: Evidence) -> Finding | None:
    """Find a scaler with a short growth interval whose skipped steps follow its growth."""
    skips, made = evidence.numbers.skips, evidence.loop.count("scaler step")
    if skips < SKIPS or skips < SHARE * made:
        return None
    scales = [each.scale for each in evidence.numbers.steps if each.scale is not None]
    rises = sum(after > before for before, after in pairwise(scales))
    for scaler in evidence.static.scalers:
        interval = int(scaler.settings["growth_interval"])
        if interval * SHARE >= 1 or 2 * rises < skips:
            continue
        return Finding(
            summary=f"{skips} of {made} steps were skipped: the loss scale is raised after "
            f"{counted(interval, 'step')} without inf or NaN, and the gradients overflow again",
            facts=(
                f"growth_interval is {interval}; its default is {_DEFAULT}",
                f"the loss scale was raised {rises} times",
            ),
            change=_change(scaler.site),
            site=scaler.site,
        )
    return None


def _change(site: Site | None) -> tuple[str, ...]:
    made = statement((site.file, site.line, site.function)) if site else ""
    changed = with_argument(made, "GradScaler", "growth_interval", str(_DEFAULT))
    if changed is None:
        return (f"+ # create the scaler with growth_interval={_DEFAULT}, which is the default",)
    return difference(made, changed)


RULE = Rule(
    code="SCALE_GROWS_TOO_SOON",
    name="a loss scale that is raised too soon",
    rows=(43,),
    citations=("pytorch/pytorch#98828", "Parskatt/RoMa#109"),
    needs=frozenset({"loop", "numbers", "static"}),
    judge=judge,
    harmless=True,
)
