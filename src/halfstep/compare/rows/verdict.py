"""The verdict on each row: its accuracy, its gain in speed and memory, and the advice.

Only the rules in this file decide which text follows from which numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from halfstep.compare.rows.rows import on_device
from halfstep.compare.rows.statistics import CONFIDENCE, MOST_SEEDS
from halfstep.recipe import recipe
from halfstep.show.units import percent, points, ratio, ratio_interval

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfstep.compare.plan.grid import Grid
    from halfstep.compare.rows.rows import Row
    from halfstep.compare.rows.statistics import Estimate, Ratio

Kind = Literal["use", "keep", "worse", "broken", "unknown"]

GAIN = 1.05
"""The ratio to the baseline above which a speed-up, or a saving of memory, is worth a change.

A row has a gain if the whole confidence interval of the ratio is above this value. It has no gain
if the whole interval is below. Otherwise more seeds are needed.
"""
ONE_SEED = "run --seeds 3 or more before you decide"
"""The advice for each finished row of a comparison with one seed."""
_UNEXPLAINED = "NOT_FINITE"
"""The code with which doctor reports inf or NaN whose cause it does not know."""
_DIVERGED = "LEARNING_RATE_TOO_HIGH"
"""Doctor's code for a run whose loss increased before it became non-finite."""
TOLERABLE = 0.01
"""The largest loss of accuracy, 0 to 1, that the interval of a recommended recipe may contain."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a row.

    Attributes:
        kind: "use" the recipe; "keep" the baseline, because there is no gain; "worse" in accuracy;
            "broken", because a run failed; or "unknown", because the results do not decide yet.
        label: The name of the row's arm.
        finding: The result in words.
        advice: What to do. It never starts with a name, because its first letter is capitalised.
    """

    kind: Kind
    label: str
    finding: str
    advice: str

    def __str__(self) -> str:
        return f"{self.label}: {self.finding}. {self.advice[0].upper()}{self.advice[1:]}"


def verdicts(grid: Grid, rows: list[Row]) -> list[Verdict]:
    """Return a verdict on each row that is not a baseline."""
    by_arm = {row.arm: row for row in rows}
    return [
        _judge(row, by_arm[grid.baseline(row.arm)], _name_of_baseline(grid, row))
        for row in rows
        if not row.is_baseline
    ]


def accuracy(difference: Estimate, baseline: str) -> str:
    """Describe the difference in accuracy between a row and its baseline, with its significance."""
    said = f"{points(difference.mean)} points compared with {baseline}"
    if difference.low is None or difference.high is None:
        return f"{said}; one seed gives no interval"
    if difference.low == difference.high == 0.0:
        return f"equal to {baseline} in all {difference.seeds} seeds"
    said += f" [{points(difference.low)}, {points(difference.high)}]"
    if not difference.covers_zero:
        return f"{said}, {'better' if difference.mean > 0 else 'worse'}"
    said += f", no significant difference with {difference.seeds} seeds"
    if difference.mean == 0.0:
        return said
    needed = f"{_about(difference.seeds_needed)} seeds would be needed"
    return f"{said} ({needed} to show a difference this small)"


def interval_note() -> str:
    """Return the explanation of the intervals in brackets."""
    return (
        f"[ ] is the {100 * CONFIDENCE:.0f} % confidence interval by Student's t, paired by seed. "
        "Intervals of ratios are computed on logarithms, and the mean of ratios is geometric."
    )


def _judge(row: Row, base: Row, baseline: str) -> Verdict:
    label = row.arm.label
    broken = [each for each in row.results if each.status in ("nonfinite", "collapsed")]
    if broken:
        how = " and ".join(dict.fromkeys(each.status for each in broken))
        seeds = f" in {len(broken)} of {len(row.results)} seeds" if len(row.results) > 1 else ""
        step = row.first_nonfinite_step
        where = "" if step is None else f" (first non-finite loss at step {step})"
        return Verdict("broken", label, f"{how}{seeds}{where}", _remedy(row, base))
    if not any(each.status == "finished" for each in row.results):
        return Verdict("unknown", label, row.status, "the same command repeats the run")
    if row.difference is None:
        return Verdict(
            "unknown",
            label,
            f"{baseline} has no result to compare with",
            f"see the row of {baseline} for the reason",
        )
    found = "; ".join(
        filter(None, (accuracy(row.difference, baseline), _gains(row, base, baseline)))
    )
    kind, advice = _advise(row, base, row.difference, baseline)
    return Verdict(kind, label, found, advice)


def _advise(row: Row, base: Row, difference: Estimate, baseline: str) -> tuple[Kind, str]:
    gains = _savings(row, base)
    gained = any(gain.is_above(GAIN) for gain in gains.values())
    if difference.low is None:
        return "unknown", ONE_SEED
    if not difference.covers_zero and difference.mean < 0:
        unless = f", unless the speed or memory of {row.arm.label} is worth the loss"
        return "worse", f"keep {baseline}{unless if gained else ''}"
    if difference.low < -TOLERABLE:
        hidden = percent(-difference.low)
        enough = _seeds_to_exclude_a_loss(difference)
        return "unknown", f"run more seeds: a loss of {hidden} points is still possible{enough}"
    if row.rehearsed:
        there = "hardware that supports it, and measure the speed there"
        return "use", f"train with {row.recipe} on {there}"
    if gained or (not difference.covers_zero and difference.mean > 0):
        return "use", "use it"
    return _without_gain(gains, row, base, baseline)


def _seeds_to_exclude_a_loss(difference: Estimate) -> str:
    """Say how many seeds would exclude a loss of more than `TOLERABLE`.

    The result is "" if the number is not known, or if fewer seeds would show that there is a loss.
    """
    needed, to_show = difference.seeds_to_exceed(-TOLERABLE), difference.seeds_needed
    if needed is None or (difference.mean < 0 and to_show is not None and to_show < needed):
        return ""
    return f"; about {needed} seeds in all would exclude a loss of more than one point"


def _without_gain(
    gains: Mapping[str, Ratio], row: Row, base: Row, baseline: str
) -> tuple[Kind, str]:
    """Return the advice for a row without a proven gain: keep the baseline, or measure more."""
    if base.rehearsed:
        there = f"hardware that supports {baseline}"
        return "unknown", f"keep {baseline} until the speed is measured on {there}"
    if _is_disturbed(row, base):
        return "unknown", f"keep {baseline} until the speed is measured on idle cores"
    questions = []
    for name, gain in gains.items():
        if not gain.is_below(GAIN):
            needed = "3 or more" if gain.seeds == 1 else _about(gain.seeds_to_tell(GAIN))
            questions.append(f"whether {row.arm.label} is {GAIN:g}x {name} ({needed} seeds)")
    if not questions:
        return "keep", f"keep {baseline}: there is nothing to gain on this device"
    return "unknown", f"keep {baseline} until more seeds show {' and '.join(questions)}"


def _savings(row: Row, base: Row) -> dict[str, Ratio]:
    """Return the ratios by which a row is "faster" and "smaller", if they are valid for advice.

    Rehearsed and disturbed speeds are not valid, and neither is the memory of a process.
    """
    if row.rehearsed or base.rehearsed:
        return {}
    found = {
        "faster": None if _is_disturbed(row, base) else row.speed,
        "smaller": row.memory.inverse() if row.memory and on_device(row) else None,
    }
    return {name: gain for name, gain in found.items() if gain is not None}


def _is_disturbed(row: Row, base: Row) -> bool:
    return row.disturbed or base.disturbed


def _about(seeds: int | None) -> str:
    return f"more than {MOST_SEEDS}" if seeds is None else f"about {seeds}"


def _gains(row: Row, base: Row, baseline: str) -> str:
    if row.rehearsed or base.rehearsed:
        whose = "" if row.rehearsed else f" of {baseline}"
        return f"the speed{whose} here is that of a rehearsal and does not count"
    said = []
    if row.speed is not None:
        said.append(_times(row.speed, "speed") + _disturbed(row, base, baseline))
    if row.memory is not None:
        said.append(_times(row.memory, "memory"))
    return ", ".join(said)


def _disturbed(row: Row, base: Row, baseline: str) -> str:
    """Return a remark that names the rows whose times were disturbed; "" if there are none."""
    own = row.recipe if row.recipe != base.recipe else row.arm.label
    names = [name for each, name in ((base, baseline), (row, own)) if each.disturbed]
    return f" (times of {' and '.join(names)} were disturbed)" if names else ""


def _times(found: Ratio, of_what: str) -> str:
    ends = ratio_interval(found.low, found.high)
    return f"{ratio(found.mean)}x the {of_what}{' ' if ends else ''}{ends}"


def _remedy(row: Row, base: Row) -> str:
    trained = recipe(row.results[0].cell.settings.get("recipe", "fp32"))
    unscaled = trained.product_format == "fp16" and trained.scaling is None
    causes = [
        each.cause for each in row.results if each.cause and not each.cause.startswith(_UNEXPLAINED)
    ]
    # A loss scale does not help if the learning rate is too high for other recipes as well.
    diverged = any(each.startswith(_DIVERGED) for each in causes)
    if causes and not diverged:
        codes = dict.fromkeys(each.partition(":")[0] for each in causes)
        return f"doctor found the cause, {' and '.join(codes)}; see its note below"
    if unscaled and not diverged and base.first_nonfinite_step is None:
        return (
            f"use o2 or fp16, because {row.recipe} does not scale the loss; or try a lower "
            "learning rate"
        )
    return "try a lower learning rate, a longer warm-up, or clip_norm"


def _name_of_baseline(grid: Grid, row: Row) -> str:
    base = grid.baseline(row.arm)
    return base.label if base.point != row.arm.point else base.recipe
