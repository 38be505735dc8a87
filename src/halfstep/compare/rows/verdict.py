"""The verdict on each row: its accuracy, its gain in speed and memory, and the advice.

Only the rules in this file decide which text follows from which numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from halfstep.compare.rows.gains import GAIN, elsewhere, in_words, is_disturbed, measured
from halfstep.recipe import recipe
from halfstep.show.units import percent, points
from halfstep.statistics import CONFIDENCE, MOST_SEEDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.compare.plan.grid import Grid
    from halfstep.compare.rows.gains import Elsewhere
    from halfstep.compare.rows.predicted import Prediction
    from halfstep.compare.rows.rows import Row
    from halfstep.statistics import Estimate, Ratio

Kind = Literal["use", "keep", "worse", "broken", "unknown"]

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
        kind: "use" the recipe, on this machine or where a gain is predicted; "keep" the baseline,
            because there is no gain; "worse" in accuracy; "broken", because a run failed; or
            "unknown", because the results do not decide yet.
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


def verdicts(
    grid: Grid, rows: Sequence[Row], predicted: Sequence[Prediction] = ()
) -> list[Verdict]:
    """Return a verdict on each row that is not a baseline.

    Args:
        grid: The cells of the comparison.
        rows: One row for each arm.
        predicted: The predicted cost of the rows on GPUs that this machine lacks.
    """
    by_arm = {row.arm: row for row in rows}
    return [
        _judge(row, by_arm[grid.baseline(row.arm)], _name_of_baseline(grid, row), predicted)
        for row in rows
        if not row.is_baseline
    ]


def accuracy(difference: Estimate, baseline: str) -> str:
    """Describe the difference in accuracy between a row and its baseline, with its significance."""
    said = f"{points(difference.mean)} points compared with {baseline}"
    if difference.low is None or difference.high is None:
        return f"{said}; one seed gives no interval"
    if difference.equal:
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
        "The variance of a difference in accuracy is estimated from all comparable rows. "
        "Intervals of ratios are computed on logarithms, and the mean of ratios is geometric."
    )


def _judge(row: Row, base: Row, baseline: str, predicted: Sequence[Prediction]) -> Verdict:
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
        filter(None, (accuracy(row.difference, baseline), in_words(row, base, baseline)))
    )
    there = elsewhere(row.arm, base.arm, predicted)
    kind, advice = _advise(row, base, row.difference, baseline, there)
    return Verdict(kind, label, found, advice)


def _advise(
    row: Row, base: Row, difference: Estimate, baseline: str, there: Elsewhere
) -> tuple[Kind, str]:
    if difference.low is None:
        return "unknown", ONE_SEED
    if not difference.covers_zero and difference.mean < 0:
        gained = any(gain.is_above(GAIN) for gain in measured(row, base).values())
        unless = f", unless the speed or memory of {row.arm.label} is worth the loss"
        return "worse", f"keep {baseline}{unless if gained else ''}"
    if difference.low < -TOLERABLE:
        hidden = percent(-difference.low)
        enough = _seeds_to_exclude_a_loss(difference)
        return "unknown", f"run more seeds: a loss of {hidden} points is still possible{enough}"
    return _advise_as_accurate(row, base, baseline, there, better=not difference.covers_zero)


def _advise_as_accurate(
    row: Row, base: Row, baseline: str, there: Elsewhere, *, better: bool
) -> tuple[Kind, str]:
    """Return the advice for a row that is not less accurate: it depends on where the row gains."""
    if row.rehearsed:
        return _where_predicted(row, baseline, there, better=better)
    gains = measured(row, base)
    if better or any(gain.is_above(GAIN) for gain in gains.values()):
        also = f", and on {' and '.join(there.gains)} (predicted)" if there.gains else ""
        here = f"use it on this machine{also}" if also or there.remarks else "use it"
        return "use", "; ".join(filter(None, (here, str(there))))
    kind, here = _without_gain(gains, row, base, baseline)
    if there.gains:
        _, advice = _where_predicted(row, baseline, there, better=better)
        return "use", f"{advice}; on this machine, {here}"
    return kind, "; ".join(filter(None, (here, str(there))))


def _where_predicted(
    row: Row, baseline: str, there: Elsewhere, *, better: bool
) -> tuple[Kind, str]:
    """Return the advice for a row whose speed on this machine is no reason to use it."""
    measure = "and measure the speed there"
    if there.gains:
        places = f"{' and '.join(there.gains)} (predicted gain), {measure}"
        found = f"train with {row.recipe} on {places}"
        return "use", "; ".join(filter(None, (found, str(there))))
    if not there.remarks:
        return "use", f"train with {row.recipe} on hardware that supports it, {measure}"
    if better:
        return "use", f"train with {row.recipe} for its accuracy; {there}"
    return "keep", f"keep {baseline}: {there}"


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
    if is_disturbed(row, base):
        return "unknown", f"keep {baseline} until the speed is measured on idle cores"
    questions = []
    for name, gain in gains.items():
        if not gain.is_below(GAIN):
            needed = "3 or more" if gain.seeds == 1 else _about(gain.seeds_to_tell(GAIN))
            questions.append(f"whether {row.arm.label} is {GAIN:g}x {name} ({needed} seeds)")
    if not questions:
        return "keep", f"keep {baseline}: there is nothing to gain on this device"
    return "unknown", f"keep {baseline} until more seeds show {' and '.join(questions)}"


def _about(seeds: int | None) -> str:
    return f"more than {MOST_SEEDS}" if seeds is None else f"about {seeds}"


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
