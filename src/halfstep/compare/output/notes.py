"""The notes on a comparison: what befell its runs, and the meaning of its figures and marks.

The most important notes are first, so that output with little space can take the first few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.compare.cells.versions import mixed
from halfstep.compare.output.columns import DISTURBED, ON_FRONT, on_cpu
from halfstep.compare.rows.rows import is_disturbed, rehearsed_parts, rows_by_arm
from halfstep.compare.rows.verdict import interval_note
from halfstep.show.table import REHEARSED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.compare.cells.results import Result
    from halfstep.compare.plan.grid import Grid
    from halfstep.compare.rows.rows import Row

_OF_ACCURACY = (
    "best %, final %: validation accuracy after the best and after the last epoch. vs: the "
    "difference in best %. "
)
MEANINGS = (
    "train time: the training steps alone; wall time: from reading the data "
    "to the end. The command `halfstep recipes` prints what each recipe sets."
)


def warnings(grid: Grid, results: Sequence[Result]) -> list[str]:
    """Return the notes on these runs: why some failed, and what makes figures unreliable."""
    with_seed = len(grid.seeds) > 1 or len(grid.points) > 1
    named = [(run.cell.label if with_seed else run.cell.recipe, run) for run in results]
    sentences = [f"{name} {run.status}: {run.failure}" for name, run in named if run.failure]
    sentences += mixed(results)
    if any(row.disturbed for row in rows_by_arm(grid, results)):
        sentences.append(f"{DISTURBED} {disturbed_note()}.")
    return sentences


def notes(grid: Grid, results: Sequence[Result]) -> list[str]:
    """Return all notes: the warnings, then the meaning of the figures and marks."""
    rows = rows_by_arm(grid, results)
    sentences = warnings(grid, results)
    how = _rehearsals(rows)
    if how:
        sentences.append(
            f"{REHEARSED} rehearsed (emulated): accuracy and skipped steps are valid, times are "
            "not. On a GPU that has the formats, the same command also measures their speed and "
            "memory."
        )
    if len(grid.seeds) > 1:
        sentences.append(
            "± is the standard deviation over the finished seeds; in the column of differences, it "
            "is half the width of the interval."
        )
        sentences.append(interval_note(grid))
    if on_cpu(results):
        sentences.append(
            "* Memory is the increase of the process's resident memory during training."
        )
    if grid.processes > 1:
        sentences.append(
            f"Each run trained in {grid.processes} processes, with batches of {grid.processes} "
            "times batch_size."
        )
    if any(row.on_front for row in rows):
        sentences.append(
            f"{ON_FRONT} marks the Pareto front, that is, rows for which {front_note(results)}."
        )
    return [*sentences, _meanings(grid), *how]


def _meanings(grid: Grid) -> str:
    if grid.score.is_accuracy:
        return _OF_ACCURACY + MEANINGS
    name, better = grid.score.name, "lower" if grid.score.less_is_better else "higher"
    return (
        f"best, final: validation {name} after the best and after the last epoch; {better} is "
        f"better. better than: the difference in the best {name}, positive if it is better. "
        f"{MEANINGS}"
    )


def front_note(results: Sequence[Result]) -> str:
    """Return the meaning of the mark for rows on the Pareto front."""
    ways = "accuracy and time" if on_cpu(results) else "accuracy, time and memory"
    ignored = [
        kind
        for kind, holds in (("rehearsed", rehearsed_parts), ("disturbed", is_disturbed))
        if any(map(holds, results))
    ]
    aside = f" ({' and '.join(ignored)} rows are not considered)" if ignored else ""
    return f"no other finished row is at least as good in {ways} and better in one of them{aside}"


def disturbed_note() -> str:
    """Return the meaning of the mark for disturbed times, and how to measure again."""
    return (
        "the times are not reliable: other processes used the cores. To measure again, add --fresh "
        "to the command; also run fewer other programs at the same time, or put "
        "OMP_NUM_THREADS=1 or OMP_WAIT_POLICY=PASSIVE before the command"
    )


def _rehearsals(rows: Sequence[Row]) -> list[str]:
    """Return how each part of a recipe is emulated."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        for reason in row.rehearsed:
            by_reason.setdefault(reason, []).append(row.recipe)
    by_how: dict[str, list[str]] = {}
    for reason, names in by_reason.items():
        what, how = _rehearsal(reason, list(dict.fromkeys(names)))
        by_how.setdefault(how, []).append(what)
    return [
        f"{REHEARSED} {' and '.join(whats)} {'are' if len(whats) > 1 else 'is'} emulated as "
        f"follows: {how}"
        for how, whats in by_how.items()
    ]


def _rehearsal(reason: str, recipes: list[str]) -> tuple[str, str]:
    """Split "autocast fp16: rehearsed (how)" into the field with its recipes, and "how"."""
    field, _, how = reason.partition(": rehearsed (")
    if not how:
        return ", ".join(recipes), reason
    what = "recipe" if len(recipes) == 1 else "recipes"
    return f"{field} ({what} {', '.join(recipes)})", how.removesuffix(")")
