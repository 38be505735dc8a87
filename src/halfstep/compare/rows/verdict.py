"""The answer for each row: is its accuracy settled, and what does it gain in speed and memory.

The interval of a row's difference in accuracy is held against the margin. Wholly above it, the row
is no worse by more than the margin; wholly below it, the row is worse; otherwise the seeds do not
settle it. Rows are judged only at the planned looks, once all of their runs have ended. Only the
rules in this file decide which text follows from which numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from halfstep.compare.plan.score import ACCURACY
from halfstep.compare.rows.gains import GAIN, elsewhere, in_words, is_disturbed, measured
from halfstep.recipe import recipe
from halfstep.statistics import MOST_SEEDS, POWER, power, seeds_needed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.compare.plan.grid import Check, Grid
    from halfstep.compare.plan.score import Score
    from halfstep.compare.rows.gains import Elsewhere
    from halfstep.compare.rows.predicted import Prediction
    from halfstep.compare.rows.rows import Row
    from halfstep.statistics import Estimate, Ratio

Answer = Literal["no worse by more than the margin", "worse", "not settled"]

NO_WORSE: Answer = "no worse by more than the margin"
WORSE: Answer = "worse"
NOT_SETTLED: Answer = "not settled"
ONE_SEED = "run --seeds 3 or more before you decide"
"""The advice for each finished row of a comparison with one seed."""
_UNEXPLAINED = "NOT_FINITE"
"""The code with which doctor reports inf or NaN whose cause it does not know."""
_DIVERGED = "LEARNING_RATE_TOO_HIGH"
"""Doctor's code for a run whose loss increased before it became non-finite."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for a row.

    Attributes:
        answer: Whether the accuracy is no worse by more than the margin, worse, or not settled. A
            row all of whose runs failed is worse if no run of its baseline did.
        label: The name of the row's arm.
        finding: The result in words.
        advice: What to do, or what a check shows. It never starts with a name, because its first
            letter is capitalised.
        check: What the row checks; None for a recipe that is compared.
        power: The probability that these seeds settle a row with the accuracy of its baseline; None
            if it is unknown.
        seeds_needed: The number of seeds with which that probability is `POWER`; None if it is
            unknown, or above `MOST_SEEDS`.
    """

    answer: Answer
    label: str
    finding: str
    advice: str
    check: Check | None = None
    power: float | None = None
    seeds_needed: int | None = None

    @property
    def kind(self) -> str:
        """The answer as one word, for style sheets."""
        return {NO_WORSE: "no-worse", WORSE: "worse", NOT_SETTLED: "not-settled"}[self.answer]

    def __str__(self) -> str:
        advice = f". {self.advice[0].upper()}{self.advice[1:]}" if self.advice else ""
        return f"{self.label}: {self.answer}; {self.finding}{advice}"


def verdicts(
    grid: Grid, rows: Sequence[Row], predicted: Sequence[Prediction] = ()
) -> list[Verdict]:
    """Return the answer for each row that is not a baseline.

    Args:
        grid: The cells of the comparison.
        rows: One row for each arm.
        predicted: The predicted cost of the rows on GPUs that this machine lacks.
    """
    by_arm = {row.arm: row for row in rows}
    return [
        _judge(grid, row, by_arm[grid.baseline(row.arm)], predicted)
        for row in rows
        if not row.is_baseline
    ]


def plans_judged(grid: Grid, rows: Sequence[Row]) -> tuple[tuple[int, ...], ...]:
    """Return the looks of each comparison that this directory has judged, with those of this one.

    A comparison counts from its first interval on.
    """
    judged = any(
        row.difference is not None and row.difference.low is not None
        for row in rows
        if not row.is_baseline
    )
    return grid.plans if grid.looks in grid.plans or not judged else (*grid.plans, grid.looks)


def answer(difference: Estimate, tolerated: float) -> Answer:
    """Hold the interval of a difference in the score against a margin, in the same unit."""
    if difference.low is None or difference.high is None:
        return NOT_SETTLED
    if difference.low > -tolerated:
        return NO_WORSE
    return WORSE if difference.high < -tolerated else NOT_SETTLED


def described(difference: Estimate, baseline: str, score: Score = ACCURACY) -> str:
    """Describe the difference in the score between a row and its baseline, with its interval."""
    text = f"{score.gain(difference.mean)} compared with {baseline}"
    if difference.low is None or difference.high is None:
        return f"{text}; one seed gives no interval"
    seeds = f"{difference.seeds} seeds"
    interval = f"[{score.difference(difference.low)}, {score.difference(difference.high)}]"
    if difference.equal:
        return f"equal to {baseline} in all {seeds} {interval}"
    return f"{text} {interval} with {seeds}"


def interval_note(grid: Grid) -> str:
    """Return what the intervals in brackets are, what they cover, and how they are judged."""
    looks = grid.looks or (len(grid.seeds),)
    planned = (
        f" It is wider at the {len(looks)} planned looks ({', '.join(map(str, looks))} seeds), so "
        "that all looks together are wrong as rarely as one."
        if len(looks) > 1
        else ""
    )
    return (
        f"[ ] is the {100 * grid.confidence(max(looks)):.3g} % confidence interval by Student's t, "
        "paired by seed. It covers other seeds on this validation set, not another validation set."
        f"{planned} A row is no worse by more than the margin of "
        f"{grid.score.margin(grid.margin)} if its whole interval is above that loss, and worse if "
        "it is below. Intervals of ratios are computed on logarithms, and the mean of ratios is "
        "geometric."
    )


def _judge(grid: Grid, row: Row, base: Row, predicted: Sequence[Prediction]) -> Verdict:
    label, check = row.arm.label, grid.checks.get(row.recipe)
    baseline = base.arm.label if base.arm.point != row.arm.point else base.recipe
    broken = [result for result in row.results if result.status in ("nonfinite", "collapsed")]
    if broken:
        how = " and ".join(dict.fromkeys(result.status for result in broken))
        seeds = f" in {len(broken)} of {len(row.results)} seeds" if len(row.results) > 1 else ""
        step = row.first_nonfinite_step
        where = "" if step is None else f" (first non-finite loss at step {step})"
        always = len(broken) == len(row.results)
        lost = always and all(result.status == "finished" for result in base.results)
        failed = WORSE if lost else NOT_SETTLED
        advice = _of_check(check, failed) if check else _remedy(row, base)
        return Verdict(failed, label, f"{how}{seeds}{where}", advice, check)
    if not any(result.status == "finished" for result in row.results):
        again = "the same command repeats the run"
        return Verdict(NOT_SETTLED, label, row.status, again, check)
    if row.difference is None:
        why = f"{baseline} has no result to compare with"
        return Verdict(NOT_SETTLED, label, why, f"see the row of {baseline} for the reason", check)
    waiting = any(result.status == "pending" for result in (*row.results, *base.results))
    if waiting and len(row.results) > 1:
        why = f"{row.difference.seeds} of {len(row.results)} seeds have a result"
        return Verdict(NOT_SETTLED, label, why, "the same command runs the others", check)
    settled = answer(row.difference, grid.margin)
    chance, needed = _chance(row, grid.margin)
    numbers = "; ".join(
        filter(
            None,
            (
                described(row.difference, baseline, grid.score) + _with_power(chance),
                "" if check else in_words(row, base, baseline),
            ),
        )
    )
    if row.difference.low is None:
        advice = ONE_SEED
    elif check:
        advice = _of_check(check, settled)
    else:
        there = elsewhere(row.arm, base.arm, predicted)
        advice = _advise(row, base, settled, baseline, there, grid, needed)
    return Verdict(settled, label, numbers, advice, check, chance, needed)


def _chance(row: Row, tolerated: float) -> tuple[float | None, int | None]:
    """Return the power of a row's seeds, and the seeds that are needed, from the pooled noise."""
    difference = row.difference
    if difference is None or row.noise is None or difference.seeds < 2:
        return None, None
    given = tolerated, row.noise
    chance = power(*given, difference.seeds, difference.confidence)
    return chance, seeds_needed(*given, difference.confidence)


def _with_power(chance: float | None) -> str:
    return "" if chance is None else f" (power {100 * chance:.0f} %)"


def _of_check(check: Check, settled: Answer) -> str:
    """Return what the answer for a check says about the comparison."""
    if check == "again":
        return {
            NO_WORSE: "as it must be: the same recipe with other seeds",
            WORSE: "do not trust this comparison: it calls the same recipe worse",
            NOT_SETTLED: "these seeds cannot settle even the same recipe with other seeds",
        }[settled]
    if settled == WORSE:
        return "as it must be: this recipe loses by design"
    return "do not trust this comparison: it does not tell a recipe that loses by design"


def _advise(
    row: Row,
    base: Row,
    settled: Answer,
    baseline: str,
    there: Elsewhere,
    grid: Grid,
    needed: int | None,
) -> str:
    difference = row.difference
    if difference is None or difference.low is None:
        raise AssertionError("only rows with an interval have advice")
    if settled == WORSE:
        gained = any(gain.is_above(GAIN) for gain in measured(row, base).values())
        unless = f", unless the speed or memory of {row.arm.label} is worth the loss"
        return f"keep {baseline}{unless if gained else ''}"
    if settled == NOT_SETTLED:
        good = "accurate" if grid.score.is_accuracy else "good"
        if needed is None or needed > difference.seeds:
            return (
                f"run more seeds: {_about(needed)} settle a recipe as {good} as {baseline} in "
                f"{100 * POWER:.0f} % of comparisons"
            )
        return (
            f"these seeds settle most recipes as {good} as {baseline}, so the loss of this one "
            f"may be near {grid.score.margin(grid.margin)}: choose another margin, or run more "
            "seeds"
        )
    return _advise_as_accurate(row, base, baseline, there, better=difference.low > 0)


def _advise_as_accurate(
    row: Row, base: Row, baseline: str, there: Elsewhere, *, better: bool
) -> str:
    """Return the advice for a row that is accurate enough: it depends on where the row gains."""
    if row.rehearsed:
        return _where_predicted(row, baseline, there, better=better)
    gains = measured(row, base)
    if better or any(gain.is_above(GAIN) for gain in gains.values()):
        also = f", and on {' and '.join(there.gains)} (predicted)" if there.gains else ""
        here = f"use it on this machine{also}" if also or there.remarks else "use it"
        return "; ".join(filter(None, (here, str(there))))
    here = _without_gain(gains, row, base, baseline)
    if there.gains:
        advice = _where_predicted(row, baseline, there, better=better)
        return f"{advice}; on this machine, {here}"
    return "; ".join(filter(None, (here, str(there))))


def _where_predicted(row: Row, baseline: str, there: Elsewhere, *, better: bool) -> str:
    """Return the advice for a row whose speed on this machine is no reason to use it."""
    measure = "and measure the speed there"
    if there.gains:
        places = f"{' and '.join(there.gains)} (predicted gain), {measure}"
        advice = f"train with {row.recipe} on {places}"
        return "; ".join(filter(None, (advice, str(there))))
    if not there.remarks:
        return f"train with {row.recipe} on hardware that supports it, {measure}"
    if better:
        return f"train with {row.recipe} for its accuracy; {there}"
    return f"keep {baseline}: {there}"


def _without_gain(gains: Mapping[str, Ratio], row: Row, base: Row, baseline: str) -> str:
    """Return the advice for a row without a proven gain: keep the baseline, or measure more."""
    if base.rehearsed:
        there = f"hardware that supports {baseline}"
        return f"keep {baseline} until the speed is measured on {there}"
    if is_disturbed(row, base):
        return f"keep {baseline} until the speed is measured on idle cores"
    questions = []
    for name, gain in gains.items():
        if not gain.is_below(GAIN):
            needed = "3 or more seeds" if gain.seeds == 1 else _about(gain.seeds_to_tell(GAIN))
            questions.append(f"whether {row.arm.label} is {GAIN:g}x {name} ({needed})")
    if not questions:
        return f"keep {baseline}: there is nothing to gain on this device"
    return f"keep {baseline} until more seeds show {' and '.join(questions)}"


def _about(seeds: int | None) -> str:
    return f"more than {MOST_SEEDS} seeds" if seeds is None else f"about {seeds} seeds"


def _remedy(row: Row, base: Row) -> str:
    trained = recipe(row.results[0].cell.settings.get("recipe", "fp32"))
    causes = [
        result.cause
        for result in row.results
        if result.cause and not result.cause.startswith(_UNEXPLAINED)
    ]
    # A loss scale does not help if the learning rate is too high for other recipes as well.
    diverged = any(cause.startswith(_DIVERGED) for cause in causes)
    if causes and not diverged:
        codes = dict.fromkeys(cause.partition(":")[0] for cause in causes)
        return f"doctor found the cause, {' and '.join(codes)}; see its note below"
    if trained.lacks_loss_scale and not diverged and base.first_nonfinite_step is None:
        return (
            f"use o2 or fp16, because {row.recipe} does not scale the loss; or try a lower "
            "learning rate"
        )
    return "try a lower learning rate, a longer warm-up, or clip_norm"
