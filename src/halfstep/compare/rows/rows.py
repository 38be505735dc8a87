"""The rows of a comparison's tables: the results of all seeds of an arm, paired with the baseline.

This file only computes. `units` and `table` choose the digits, and `verdict` interprets the
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from halfstep.compare.cells.results import Spread
from halfstep.compare.rows.measures import measures_of
from halfstep.disturbance import DISTURBED
from halfstep.statistics import Estimate, Ratio, estimate, estimate_ratio, pareto, pooled_sd

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.compare.cells.results import Result
    from halfstep.compare.plan.grid import Arm, Grid

_FRONT = (("train_seconds", -1.0), ("peak_memory_bytes", -1.0))


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: an arm, or one seed of it.

    Attributes:
        arm: The recipe and the overrides.
        seed: The seed, or None for all seeds.
        status: "finished", or the number of seeds with each status ("2 finished, 1 crashed").
        measures: One spread per name in `measures_of`, in the units of the summary, over the
            results in `measured`.
        first_nonfinite_step: The earliest optimizer step (from 1) of any seed at which the loss was
            not finite; None if it was always finite.
        is_baseline: Whether other rows are compared with this row.
        difference: How much better the best score is than that of the baseline with the same seed;
            accuracies are between 0 and 1. Its confidence is that of the look at which the row is.
        noise: The standard deviation of such a difference for a single seed, pooled over all rows
            with this baseline; None if it is unknown. It plans the number of seeds, and judges
            nothing.
        speed: The ratio of images per second to those of the baseline with the same seed; None if
            one of the two is rehearsed, because its times are then not those of the format.
        memory: The ratio of the peak memory to that of the baseline with the same seed.
        rehearsed: Each part of the recipe that the device emulates, and how.
        disturbed: Whether threads of a run waited so long for cores, which other processes used,
            that the times of the run are not reliable.
        on_front: Whether the row is on the Pareto front of accuracy, training time and (on a
            device) memory. None if the row is unfinished, rehearsed or disturbed, or if fewer than
            two rows can be compared.
        results: The results of all seeds of the row.
        measured: The results that `measures` are computed from: those of the seeds that finished,
            or all results if no seed finished.
    """

    arm: Arm
    seed: int | None
    status: str
    measures: Mapping[str, Spread | None]
    first_nonfinite_step: int | None
    is_baseline: bool
    difference: Estimate | None
    noise: float | None
    speed: Ratio | None
    memory: Ratio | None
    rehearsed: tuple[str, ...]
    disturbed: bool
    on_front: bool | None
    results: tuple[Result, ...]
    measured: tuple[Result, ...]

    @property
    def recipe(self) -> str:
        """Name of the recipe."""
        return self.arm.recipe

    @property
    def sources(self) -> str:
        """The summary files in the comparison's directory that the measures are from."""
        return " ".join(
            f"{result.cell.directory.name}/run/summary.json" for result in self.measured
        )


def rows_by_arm(grid: Grid, results: Sequence[Result]) -> list[Row]:
    """Return one row per arm, over all of its seeds."""
    by_arm: dict[Arm, list[Result]] = {arm: [] for arm in grid.arms}
    for result in results:
        by_arm[result.cell.arm].append(result)
    step = _step(grid, results)
    noise = _noise(grid, by_arm, step)
    rows = [
        _row(arm, None, own, by_arm[grid.baseline(arm)], grid, noise.get(grid.baseline(arm)), step)
        for arm, own in by_arm.items()
    ]
    return _with_front(grid, rows)


def rows_by_seed(grid: Grid, results: Sequence[Result]) -> list[Row]:
    """Return one row per cell; the seeds of an arm are next to each other."""
    return [
        _row(arm, result.cell.seed, [result], results, grid)
        for arm in grid.arms
        for result in results
        if result.cell.arm == arm
    ]


def on_device(row: Row) -> bool:
    """Tell whether the memory of a row is the memory of a device.

    On a CPU, the memory is the increase of the process's resident memory. It depends on what the
    process did before, and is too noisy for a choice of recipe.
    """
    return all(
        result.summary.get("peak_memory_kind", "device") == "device" for result in row.measured
    )


def rehearsed_parts(result: Result) -> Sequence[str]:
    """Return each part of the recipe that the device emulated in a run, and how."""
    parts: Sequence[str] = result.summary.get("rehearsed", ())
    return parts


def is_disturbed(result: Result) -> bool:
    """Tell whether the run's threads waited so long for cores that its times are not reliable."""
    return (result.number("core_wait_share") or 0.0) >= DISTURBED


def _row(
    arm: Arm,
    seed: int | None,
    own: Sequence[Result],
    others: Sequence[Result],
    grid: Grid,
    noise: float | None = None,
    step: float = 0.0,
) -> Row:
    finished = [result for result in own if result.status == "finished"]
    measured = finished or own
    nonfinite = [result.number("first_nonfinite_step") for result in own]
    base = grid.baseline(arm)
    pairs = _pairs(measured, [result for result in others if result.cell.arm == base])
    return Row(
        arm=arm,
        seed=seed,
        status=_status(own),
        measures={
            measure.name: Spread.over(result.number(measure.name) for result in measured)
            for measure in measures_of(grid.score)
        },
        first_nonfinite_step=min(
            (int(step) for step in nonfinite if step is not None), default=None
        ),
        is_baseline=arm == base,
        difference=estimate(_differences(grid, pairs), grid.confidence(len(own)), step),
        noise=noise,
        speed=_ratio(
            "images_per_second", [pair for pair in pairs if not any(map(rehearsed_parts, pair))]
        ),
        memory=_ratio("peak_memory_bytes", pairs),
        rehearsed=tuple(dict.fromkeys(chain.from_iterable(map(rehearsed_parts, own)))),
        disturbed=any(map(is_disturbed, measured)),
        on_front=None,
        results=tuple(own),
        measured=tuple(measured),
    )


def _with_front(grid: Grid, rows: Sequence[Row]) -> list[Row]:
    placed: dict[int, list[float]] = {}
    costs = _FRONT if all(map(on_device, rows)) else _FRONT[:1]
    ways = ((grid.score.best, grid.score.sign), *costs)
    for number, row in enumerate(rows):
        spreads = [row.measures[name] for name, _ in ways]
        if row.status != "finished" or row.rehearsed or row.disturbed or None in spreads:
            continue
        placed[number] = [
            sign * spread.mean
            for (_, sign), spread in zip(ways, spreads, strict=True)
            if spread is not None
        ]
    if len(placed) < 2:
        return list(rows)
    on = dict(zip(placed, pareto(list(placed.values())), strict=True))
    return [replace(row, on_front=on.get(number)) for number, row in enumerate(rows)]


def _status(own: Sequence[Result]) -> str:
    counts: dict[str, int] = {}
    for result in own:
        counts[result.status] = counts.get(result.status, 0) + 1
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _pairs(own: Sequence[Result], others: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Pair results with those of the baseline; a seed counts only if its baseline finished."""
    baseline = {result.cell.seed: result for result in others if result.status == "finished"}
    return [(result, baseline[result.cell.seed]) for result in own if result.cell.seed in baseline]


def _differences(grid: Grid, pairs: Sequence[tuple[Result, Result]]) -> list[float]:
    key, sign = grid.score.best, grid.score.sign
    scores = [(mine.number(key), base.number(key)) for mine, base in pairs]
    return [sign * (mine - base) for mine, base in scores if mine is not None and base is not None]


def _step(grid: Grid, results: Sequence[Result]) -> float:
    """Return the smallest difference between two accuracies: an accuracy is a count of images."""
    if not grid.score.is_accuracy:
        return 0.0
    images = [result.number("val_images") for result in results if result.status == "finished"]
    return max((1 / count for count in images if count), default=0.0)


def _noise(grid: Grid, by_arm: Mapping[Arm, Sequence[Result]], step: float) -> dict[Arm, float]:
    """Return the noise that the rows of each baseline have in common."""
    groups: dict[Arm, list[list[float]]] = {}
    for arm, own in by_arm.items():
        base = grid.baseline(arm)
        if arm == base or any(result.status in ("nonfinite", "collapsed") for result in own):
            continue
        finished = [result for result in own if result.status == "finished"]
        differences = _differences(grid, _pairs(finished, by_arm[base]))
        if max(map(abs, differences), default=0.0) <= grid.comparable:
            groups.setdefault(base, []).append(differences)
    deviations = {base: pooled_sd(group, step) for base, group in groups.items()}
    return {base: sd for base, sd in deviations.items() if sd is not None}


def _ratio(name: str, pairs: Sequence[tuple[Result, Result]]) -> Ratio | None:
    numbers = [(result.number(name), base.number(name)) for result, base in pairs]
    # There is no ratio if a value is 0, such as memory that did not increase.
    return estimate_ratio([mine / theirs for mine, theirs in numbers if mine and theirs])
