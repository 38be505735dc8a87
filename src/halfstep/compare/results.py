"""What the runs of a comparison came to: summaries to results, results to one row per recipe.

Arithmetic only. `directory` reads the summaries from disk, `table` prints the rows.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from halfstep.compare.grid import Cell, Grid

Status = Literal["pending", "finished", "nonfinite", "collapsed", "crashed"]

MEASURES = (
    "best_accuracy",
    "final_accuracy",
    "train_seconds",
    "wall_seconds",
    "images_per_second",
    "peak_memory_bytes",
    "skipped_steps",
)


@dataclass(frozen=True, slots=True)
class Result:
    """What one cell came to.

    Attributes:
        cell: The cell.
        status: How its run ended; "pending" when it has not.
        reason: Why it did not finish, in one line.
        summary: The run's summary, empty when it left none.
    """

    cell: Cell
    status: Status
    reason: str | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        """A finite number of the summary; None where there is none."""
        value = self.summary.get(name)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            return None
        return float(value)


@dataclass(frozen=True, slots=True)
class Spread:
    """A number over the seeds of one recipe.

    Attributes:
        mean: Its mean.
        sd: Its sample standard deviation; None for one seed.
        low: The smallest.
        high: The largest.
        seeds: Over how many seeds.
    """

    mean: float
    sd: float | None
    low: float
    high: float
    seeds: int

    @classmethod
    def over(cls, values: Iterable[float | None]) -> Spread | None:
        """Take the spread of the values that exist; None when none does."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        sd = statistics.stdev(known) if len(known) > 1 else None
        return cls(statistics.fmean(known), sd, min(known), max(known), len(known))


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: a recipe, or one seed of it.

    Attributes:
        recipe: Name of the recipe.
        seed: The seed, or None for all of them.
        status: "finished", or what came of the seeds that did not ("2 finished, 1 crashed").
        measures: One spread per name in `MEASURES`, in the summary's units, over the seeds that
            finished, or where none did over those that left a summary.
        first_nonfinite_step: The earliest optimizer step (from 1) of any seed at which the loss was
            not finite; None if it always was.
        difference: Best accuracy less the baseline's under the same seed, 0 to 1.
        speed: Images per second over the baseline's under the same seed.
    """

    recipe: str
    seed: int | None
    status: str
    measures: Mapping[str, Spread | None]
    first_nonfinite_step: int | None
    difference: Spread | None
    speed: Spread | None


def from_summary(cell: Cell, summary: Mapping[str, Any]) -> Result:
    """Turn the summary of a cell's run into its result.

    Raises:
        ValueError: If the summary has a status that no run writes.
    """
    status, error = summary.get("status"), summary.get("error")
    if status == "finished":
        return Result(cell, "finished", None, summary)
    if status in ("nonfinite", "collapsed"):
        return Result(cell, status, str(error) if error else f"the run ended {status}", summary)
    raise ValueError(f"status is {status!r} in the summary of {cell.run_directory}")


def rows_by_recipe(grid: Grid, results: Sequence[Result]) -> list[Row]:
    """One row per recipe, over all of its seeds."""
    return [
        _row(
            name, None, [result for result in results if result.cell.recipe == name], grid, results
        )
        for name in grid.recipes
    ]


def rows_by_seed(grid: Grid, results: Sequence[Result]) -> list[Row]:
    """One row per cell, the seeds of a recipe next to each other."""
    return [
        _row(name, result.cell.seed, [result], grid, results)
        for name in grid.recipes
        for result in results
        if result.cell.recipe == name
    ]


def as_json(grid: Grid, results: Sequence[Result]) -> dict[str, Any]:
    """Return the comparison as plain data: rows, and cells with the summaries they come from."""
    return {
        "config": grid.config,
        "device": grid.device,
        "recipes": list(grid.recipes),
        "seeds": list(grid.seeds),
        "options": list(grid.options),
        "complete": all(result.status not in ("pending", "crashed") for result in results),
        "rows": [asdict(row) for row in rows_by_recipe(grid, results)],
        "cells": [
            {
                "recipe": result.cell.recipe,
                "seed": result.cell.seed,
                "status": result.status,
                "reason": result.reason,
                "directory": result.cell.directory.name,
                "fingerprint": result.cell.fingerprint,
                "summary": dict(result.summary),
            }
            for result in results
        ],
    }


def _row(
    name: str, seed: int | None, own: Sequence[Result], grid: Grid, results: Sequence[Result]
) -> Row:
    finished = [result for result in own if result.status == "finished"]
    measured = finished or own
    nonfinite = [result.number("first_nonfinite_step") for result in own]
    baseline = {
        result.cell.seed: result for result in results if result.cell.recipe == grid.recipes[0]
    }
    pairs = [(result, baseline[result.cell.seed]) for result in measured]
    return Row(
        recipe=name,
        seed=seed,
        status=_status(own),
        measures={
            measure: Spread.over(result.number(measure) for result in measured)
            for measure in MEASURES
        },
        first_nonfinite_step=min(
            (int(step) for step in nonfinite if step is not None), default=None
        ),
        difference=Spread.over(_difference(result, base) for result, base in pairs),
        speed=Spread.over(_ratio(result, base) for result, base in pairs),
    )


def _status(own: Sequence[Result]) -> str:
    counts: dict[str, int] = {}
    for result in own:
        counts[result.status] = counts.get(result.status, 0) + 1
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _difference(result: Result, base: Result) -> float | None:
    mine, theirs = result.number("best_accuracy"), base.number("best_accuracy")
    return None if mine is None or theirs is None else mine - theirs


def _ratio(result: Result, base: Result) -> float | None:
    mine, theirs = result.number("images_per_second"), base.number("images_per_second")
    return None if mine is None or not theirs else mine / theirs
