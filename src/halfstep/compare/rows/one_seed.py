"""The conclusions from a comparison of one seed: facts, one caveat, and the next commands.

With several seeds, `verdict` has an answer for each row. With one seed, each of these answers
would only say that one seed gives no interval. This file says so once, after the known facts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.compare.rows.gains import GAIN, predicted_remark
from halfstep.compare.rows.verdict import ONE_SEED, verdicts
from halfstep.show.units import count, ratio
from halfstep.train.config.files import shipped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.compare.plan.grid import Arm, Grid
    from halfstep.compare.rows.predicted import Predicted, Prediction
    from halfstep.compare.rows.rows import Row
    from halfstep.compare.rows.verdict import Verdict

_CHANCE = 1.96
"""Number of standard deviations that chance explains: 95 % of normal values are within it."""


@dataclass(frozen=True, slots=True)
class Conclusions:
    """The conclusions from a comparison of one seed.

    Attributes:
        answer: The recipe to use; "" if the comparison does not tell.
        facts: The known facts, one or two sentences each, the most important first.
        caveat: What one seed cannot show.
        commands: The next commands, each with its purpose.
        verdicts: The answers for rows that did not finish or have no baseline. The answers for all
            other rows would say that one seed gives no interval.
    """

    answer: str
    facts: tuple[str, ...]
    caveat: str
    commands: tuple[tuple[str, str], ...]
    verdicts: tuple[Verdict, ...]


def conclusions(
    grid: Grid, rows: Sequence[Row], predicted: Sequence[Prediction] = ()
) -> Conclusions | None:
    """Return the conclusions from a comparison of one seed.

    Args:
        grid: The cells of the comparison.
        rows: One row for each arm.
        predicted: The predicted cost of the rows on GPUs that this machine lacks.

    Returns:
        The conclusions; None if there are several seeds, or if no row can be compared with its
        baseline yet.
    """
    rows = [row for row in rows if row.recipe not in grid.checks]
    compared = [row for row in rows if row.status == "finished" and _is_compared(row)]
    if len(grid.seeds) > 1 or not compared:
        return None
    by_arm = {row.arm: row for row in rows}
    clear = [row for row in compared if _is_clear(row, by_arm[grid.baseline(row.arm)])]
    # Without the number of images, the effect of chance is unknown, so any loss counts as worse.
    not_worse = [
        row
        for row in compared
        if _gain(row) >= 0 or (row not in clear and _images(row) is not None)
    ]
    # Speeds that are valid on this machine.
    here = {row.arm: row.speed.mean for row in compared if row.speed and not row.disturbed}
    facts = [
        _finite(rows),
        *_accuracies(grid, [row for row in compared if row not in clear], clear),
        *_skipped(rows),
        *_speeds(here, rows),
        *(sentence for prediction in predicted for sentence in _there(prediction)),
    ]
    return Conclusions(
        _to_use(grid, rows, here, not_worse, predicted),
        tuple(facts),
        _CAVEAT,
        _commands(grid, not_worse, predicted),
        tuple(verdict for verdict in verdicts(grid, list(rows)) if verdict.advice != ONE_SEED),
    )


_CAVEAT = "One seed cannot tell small differences from chance; three seeds give an interval."


def _is_compared(row: Row) -> bool:
    return not row.is_baseline and row.difference is not None


def _best(row: Row) -> float | None:
    spread = row.measures.get("best_accuracy")
    return None if spread is None else spread.mean


def _images(row: Row) -> int | None:
    """Return the number of validation images of a row; None if it has none, or no accuracy."""
    images = row.measured[0].number("val_images")
    return None if images is None or _best(row) is None else int(images)


def _gain(row: Row) -> float:
    """Return how much better the best score of a row is than that of its baseline."""
    if row.difference is None:
        raise AssertionError("only rows with a difference are compared")
    return row.difference.mean


def _is_clear(row: Row, base: Row) -> bool:
    """Tell whether the difference to the baseline is too large to be chance among the images.

    If both models are equally good, the variance of the difference between their numbers of errors
    is the number of images that exactly one model misclassifies (McNemar, 1947,
    doi:10.1007/BF02295996). This number is at most the sum of both models' errors, which is used
    here, so the test is conservative. The test does not include the noise of training.
    """
    images, mine, theirs = _images(row), _best(row), _best(base)
    if images is None or mine is None or theirs is None:
        return False
    errors = images * ((1 - mine) + (1 - theirs))
    return images * abs(mine - theirs) > _CHANCE * math.sqrt(errors)


def _finite(rows: Sequence[Row]) -> str:
    ended = [row for row in rows if row.status != "pending"]
    broken = [row for row in ended if row.first_nonfinite_step is not None]
    if not broken:
        finished = sum(row.status == "finished" for row in rows)
        if finished == len(rows):
            return f"All {len(rows)} runs finished, and no loss was inf or NaN."
        return f"{finished} of {len(rows)} runs finished, and no loss was inf or NaN."
    where = ", ".join(f"{row.arm.label} (step {row.first_nonfinite_step})" for row in broken)
    return (
        f"{len(ended) - len(broken)} of {len(ended)} runs had only finite losses. "
        f"The other runs, with the step of their first non-finite loss: {where}."
    )


def _accuracies(grid: Grid, even: Sequence[Row], clear: Sequence[Row]) -> list[str]:
    sentences = [_even(grid, even)] if even else []
    return sentences + [_clear(grid, row) for row in clear]


def _even(grid: Grid, rows: Sequence[Row]) -> str:
    base = grid.arms[0].recipe
    than = base if len(grid.points) == 1 else f"{base} under the same options"
    images = _images(rows[0])
    gains = ", ".join(f"{_gained(grid, row, images)} under {row.arm.label}" for row in rows)
    if images is None and grid.score.is_accuracy:
        return f"Differences of the best accuracy, compared with {than}, in points: {gains}."
    if images is None:
        name = grid.score.name
        return f"How much better the best {name} is than under {than}: {gains}."
    return (
        f"Correctly classified validation images (of {images}), compared with {than}: {gains}. "
        "Each of these differences may be chance."
    )


def _gained(grid: Grid, row: Row, images: int | None) -> str:
    """Return how many more images a row classified correctly; the gain if `images` is None."""
    if images is None:
        return grid.score.difference(_gain(row))
    number = round(_gain(row) * images)
    return f"{number:+d}" if number else "0"


def _clear(grid: Grid, row: Row) -> str:
    images, gain = _images(row), _gain(row)
    if images is None:
        raise AssertionError("only rows with a number of images differ by more than chance")
    number = f"{round(abs(gain) * images)} {'more' if gain > 0 else 'fewer'}"
    return (
        f"{row.arm.label} classifies {number} validation images (of {images}) correctly than "
        f"{grid.baseline(row.arm).recipe} ({grid.score.gain(gain)}). "
        "Random variation among the images does not explain this difference."
    )


def _skipped(rows: Sequence[Row]) -> list[str]:
    skipped = {row.arm.label: row.measures["skipped_steps"] for row in rows}
    some = [
        f"{count(spread.mean)} under {label}"
        for label, spread in skipped.items()
        if spread and spread.mean
    ]
    if not some:
        return []
    return [f"Optimizer steps skipped because of inf or NaN gradients: {', '.join(some)}."]


def _speeds(here: Mapping[Arm, float], rows: Sequence[Row]) -> list[str]:
    """Return sentences on the measured speeds `here`, and on the rows that are rehearsed."""
    rehearsed = [row for row in rows if row.rehearsed]
    sentences = []
    if here:
        speeds = ", ".join(f"{ratio(speed)}x under {arm.label}" for arm, speed in here.items())
        sentences.append(f"Speed on this machine, relative to the baseline: {speeds}.")
    if rehearsed:
        sentences.append(
            f"Rehearsed (emulated) on this machine: {_names(rehearsed)}. Their speed here does not "
            "predict their speed on hardware with these formats."
        )
    return sentences


def _there(prediction: Prediction) -> list[str]:
    """Return a sentence on the predicted speed-up of the recipes on a GPU; [] if there is none."""
    known = [row for row in prediction.rows if row.speed_up is not None]
    if not known:
        return []
    there = f"Prediction for {prediction.gpu} (nothing ran there):"
    gains = [row for row in known if not row.verdict]
    if gains:
        best = max(gains, key=_speed_up)
        return [f"{there} {best.arm.label} has the largest speed-up."]
    if all(row.bound == "host" for row in known):
        why = "because the CPU takes longer to launch the kernels than the GPU to run them"
        return [f"{there} no recipe is faster than {prediction.over}, {why}."]
    return [f"{there} no recipe is faster than {prediction.over}."]


def _to_use(
    grid: Grid,
    rows: Sequence[Row],
    here: Mapping[Arm, float],
    not_worse: Sequence[Row],
    predicted: Sequence[Prediction],
) -> str:
    """Return the recipe to use on this machine and on each GPU, as a sentence.

    The result is "" if the grid has several points, or if nothing is known.
    """
    if len(grid.points) > 1:
        return ""
    base = grid.arms[0].recipe
    compared = {row.arm for row in not_worse}
    faster = {arm: speed for arm, speed in here.items() if arm in compared and speed >= GAIN}
    sentences = []
    if not any(row.is_baseline and row.rehearsed for row in rows):
        sentences.append(f"{_fastest(faster, base)} on this machine")
    for prediction in predicted:
        known = [recipe for recipe in prediction.rows if recipe.speed_up is not None]
        there = {
            recipe.arm: _speed_up(recipe)
            for recipe in known
            if recipe.arm in compared and not predicted_remark(recipe.arm, grid.arms[0], prediction)
        }
        if known:
            # On a GPU with TF32, the reference recipe is tf32, which is faster than fp32.
            slow = prediction.over if base == "fp32" else base
            sentences.append(f"{_fastest(there, slow)} on {prediction.gpu} (predicted)")
    return f"Recipe to use, as far as one seed tells: {', '.join(sentences)}." if sentences else ""


def _fastest(speeds: Mapping[Arm, float], base: str) -> str:
    return max(speeds, key=lambda arm: speeds[arm]).label if speeds else base


def _speed_up(row: Predicted) -> float:
    return row.speed_up.value if row.speed_up else 0.0


def _commands(
    grid: Grid, not_worse: Sequence[Row], predicted: Sequence[Prediction]
) -> tuple[tuple[str, str], ...]:
    commands = []
    candidate = _candidate(not_worse, predicted)
    if candidate is not None and grid.program:
        names = [grid.baseline(candidate.arm).recipe, candidate.recipe]
        command = f"halfstep.compare({grid.program}, {names}, seeds=3)"
        commands.append((command, "gives an interval; keeps the finished runs"))
    elif candidate is not None:
        recipes = f"--recipes {grid.baseline(candidate.arm).recipe},{candidate.recipe}"
        commands.append(
            (f"{_again(grid)} {recipes} --seeds 3", "gives an interval; keeps the finished runs")
        )
    if grid.program:
        return tuple(commands)
    name = grid.config if grid.config in shipped() else "YOUR.yaml"
    gpus = ",".join(prediction.key for prediction in predicted) or "h100,rtx4090,t4"
    commands += [
        (
            f"halfstep advise {name} --gpu {gpus}",
            "tests which recipes are safe for the model, and predicts other batch sizes",
        ),
        ("halfstep doctor train.py", "finds out why your own training program breaks"),
    ]
    return tuple(commands)


def _candidate(not_worse: Sequence[Row], predicted: Sequence[Prediction]) -> Row | None:
    """Return the row for which more seeds are most useful: the fastest, predicted or measured."""
    there = {
        recipe.arm: _speed_up(recipe)
        for prediction in predicted[:1]
        for recipe in prediction.rows
        if not recipe.verdict
    }

    def speed(row: Row) -> float:
        here = row.speed.mean if row.speed else 0.0
        return there.get(row.arm, here)

    # Of rows with the same speed, max returns the first, in the order of the recipes.
    return max([row for row in not_worse if row.arm in there] or not_worse, key=speed, default=None)


def _again(grid: Grid) -> str:
    """Return the command of this comparison without recipes and seeds, if the grid contains it."""
    if grid.config in shipped() and not grid.options and grid.processes == 1 and not grid.axes:
        return f"halfstep compare {grid.config}"
    return "the same command with"


def _names(rows: Sequence[Row]) -> str:
    labels = list(dict.fromkeys(row.arm.label for row in rows))
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
