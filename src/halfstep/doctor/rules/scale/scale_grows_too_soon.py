"""The loss scale is raised after a few steps, so that many steps overflow and are skipped."""

from __future__ import annotations

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
    if len(evidence.static.scalers) != 1 or skips < SKIPS or skips < SHARE * made:
        return None
    if any(event.facts["given"] for _, event in evidence.loop.of("update")):
        return None  # The loop itself sets the loss scale.
    (scaler,) = evidence.static.scalers
    interval = int(scaler.settings["growth_interval"])
    after_growth = _skips_after_growth(evidence)
    lower = [each.finite for each in evidence.replays if each.name == "lower scale"]
    is_of_scale = any(lower) or not lower  # Few skipped steps are replayed.
    if not is_of_scale or 4 * after_growth < skips:
        return None
    return Finding(
        summary=f"{skips} of {made} steps were skipped: the loss scale is raised after "
        f"{counted(interval, 'step')} without inf or NaN, and the gradients overflow again",
        facts=(
            f"growth_interval is {interval}; its default is {_DEFAULT}",
            f"{counted(after_growth, 'time')}, the first step after an increase was skipped",
        ),
        change=_change(scaler.site),
        site=scaler.site,
    )


def _skips_after_growth(evidence: Evidence) -> int:
    """Count the skipped steps whose loss scale is above that of the last step that was made."""
    last: dict[int, float] = {}
    count = 0
    for each in evidence.numbers.steps:
        if each.scale is None:
            continue
        if not each.skipped:
            last[each.optimizer] = each.scale
        elif each.scale > last.get(each.optimizer, each.scale):
            count += 1
    return count


def _change(site: Site | None) -> tuple[str, ...]:
    made = statement((site.file, site.line, site.function)) if site else ""
    # GradScaler of torch.cuda.amp and torch.cpu.amp has no argument for the device.
    position = 3 if ".cuda." in made or ".cpu." in made else 4
    changed = with_argument(made, "GradScaler", "growth_interval", str(_DEFAULT), position=position)
    if changed is None or changed.count(",") > made.count(","):  # It is set elsewhere.
        return (
            f"+ # create the scaler with growth_interval={_DEFAULT}, the default, and leave out",
            "+ # scaler.set_growth_interval() with another number",
        )
    return difference(made, changed)


RULE = Rule(
    code="SCALE_GROWS_TOO_SOON",
    name="a loss scale that is raised too soon",
    rows=(43,),
    citations=("pytorch/pytorch#98828", "Parskatt/RoMa#109"),
    needs=frozenset({"loop", "numbers", "replays", "static"}),
    judge=judge,
    harmless=True,
)
