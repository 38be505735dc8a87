"""The loss scale is raised after a few steps, so that many steps overflow and are skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.source import difference, statement, with_argument
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.sites import Site

SKIPS = 4
SHARE = 0.05
_UNDONE = 4
_LARGE, _RATIOS = 16.0, 3
_DEFAULT = 2000  # of GradScaler


def judge(evidence: Evidence) -> Finding | None:
    """Find a loss scale that grows so often that its growth skips many steps."""
    return _of_scaler(evidence) or _by_hand(evidence)


def _by_hand(evidence: Evidence) -> Finding | None:
    """Find a loss scale of the loop's own whose decreases mostly follow its increases."""
    for each in evidence.own_scales:
        tries = each.drops + each.steps
        # Another weight of a loss, such as one over a number of tokens, takes many values.
        is_scale = max(each.first, each.last) >= _LARGE and each.ratios <= _RATIOS
        if not is_scale or each.drops < SHARE * tries or each.undone < _UNDONE:
            continue
        return Finding(
            summary=f"{each.drops} of {tries} steps were left out: the program raises its own loss "
            "scale after a few steps, and the gradients overflow again",
            facts=(
                (
                    f"it was raised {counted(each.rises, 'time')}, and often it fell again before "
                    "the next step, although the loss was finite"
                ),
            ),
            change=(
                f"+ # raise it after {_DEFAULT} steps without inf or NaN, and count these steps",
                "+ # from 0 again after each increase, and after each overflow",
            ),
            confidence=LIKELY,
            site=each.site,
        )
    return None


def _of_scaler(evidence: Evidence) -> Finding | None:
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
    needs=frozenset({"loop", "numbers", "own_scales", "replays", "static"}),
    judge=judge,
    harmless=True,
)
