"""The columns and the title of a comparison's table, the same for all kinds of output.

The numbers come from `rows`; this file only chooses units, digits and headers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.compare.rows.measures import measures_of
from halfstep.show import units
from halfstep.show.table import REHEARSED, one_line
from halfstep.show.units import MISSING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.compare.cells.results import Result, Spread
    from halfstep.compare.plan.grid import Grid
    from halfstep.compare.plan.score import Score
    from halfstep.compare.rows.measures import Measure
    from halfstep.compare.rows.rows import Row
    from halfstep.statistics import Estimate, Ratio

ON_FRONT = "◆"
DISTURBED = "‡"

Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table.

    Attributes:
        header: The header; "|" marks a line break in a terminal, which keeps the column narrow.
        cell: Returns the text for a row: the number, and the spread over seeds if there is one.
        key: The name of the column in code; for a measure, its key in the summary.
        value: Returns the number by which the table is sorted; None if there is no number.
    """

    header: str
    cell: Callable[[Row], Cells]
    key: str
    value: Callable[[Row], float | None]

    @property
    def title(self) -> str:
        """The header in one line."""
        return one_line(self.header)


def columns(grid: Grid, results: Sequence[Result], *, everything: bool) -> list[Column]:
    """Return the columns of the table.

    Args:
        grid: The cells of the comparison.
        results: The results of the cells.
        everything: Whether to include all measures that any result has; otherwise only the main
            ones.
    """
    footnote = "*" if on_cpu(results) else ""
    known = [
        measure
        for measure in measures_of(grid.score)
        if measure.main
        or (everything and any(result.number(measure.name) is not None for result in results))
    ]
    shown: list[Column] = []
    for measure in known:
        shown.append(_of_measure(measure, footnote))
        if measure.name == grid.score.final:
            shown.append(_difference(grid))
        if measure.name == "images_per_second":
            shown.append(Column("speed|x", lambda row: _ratio(row.speed), "speed", _speed))
        if measure.name == "peak_memory_bytes" and everything:
            title = f"memory|x{footnote}"
            shown.append(Column(title, lambda row: _ratio(row.memory), "memory", _memory))
    shown.append(Column("non-|finite|at step", _step, "first_nonfinite_step", _first))
    return shown


def name(row: Row) -> str:
    """Return the name of a row: its recipe, and the marks that the notes explain."""
    marks = (
        REHEARSED if row.rehearsed else "",
        DISTURBED if row.disturbed else "",
        ON_FRONT if row.on_front else "",
    )
    return " ".join(filter(None, (row.recipe, *marks)))


def title(grid: Grid) -> str:
    """Return the title: the config, the device, the options and the seeds."""
    options = f" with {' '.join(grid.options)}" if grid.options else ""
    if len(grid.seeds) == 1:
        return f"{grid.config} on {grid.place}{options}, seed {grid.seeds[0]}"
    return f"{grid.config} on {grid.place}{options}, {len(grid.seeds)} seeds"


def _of_measure(measure: Measure, footnote: str) -> Column:
    header = measure.header + (footnote if measure.name == "peak_memory_bytes" else "")

    def value(row: Row) -> float | None:
        spread = row.measures[measure.name]
        return None if spread is None else spread.mean

    return Column(
        header, lambda row: _spread(row.measures[measure.name], measure.write), measure.name, value
    )


def _difference(grid: Grid) -> Column:
    first = grid.arms[0].recipe
    to = first if len(first) <= 5 and len(grid.recipes) > 1 else "row 1"
    score = grid.score
    return Column(
        f"vs {to},|points" if score.is_accuracy else f"better|than {to}",
        lambda row: _interval(row.difference, score),
        "difference",
        lambda row: None if row.difference is None else row.difference.mean,
    )


def _spread(spread: Spread | None, write: Callable[[float], str]) -> Cells:
    if spread is None:
        return (MISSING,)
    if spread.sd is None:
        return (write(spread.mean),)
    return write(spread.mean), f"±{write(spread.sd)}"


def _interval(difference: Estimate | None, score: Score) -> Cells:
    if difference is None:
        return (MISSING,)
    mean = score.difference(difference.mean)
    if difference.high is None or difference.high == difference.mean:
        return (mean,)
    return mean, f"±{score.value(difference.high - difference.mean)}"


def _ratio(ratio: Ratio | None) -> Cells:
    if ratio is None:
        return (MISSING,)
    mean = units.ratio(ratio.mean)
    # The interval is split into two words, which a terminal prints below each other to save width.
    return (mean, *units.ratio_interval(ratio.low, ratio.high).split())


def _speed(row: Row) -> float | None:
    return None if row.speed is None else row.speed.mean


def _memory(row: Row) -> float | None:
    return None if row.memory is None else row.memory.mean


def _first(row: Row) -> float | None:
    return None if row.first_nonfinite_step is None else float(row.first_nonfinite_step)


def _step(row: Row) -> Cells:
    return (MISSING if row.first_nonfinite_step is None else str(row.first_nonfinite_step),)


def on_cpu(results: Sequence[Result]) -> bool:
    """Tell whether the memory of a run is that of its process, and not that of a device."""
    return any(result.summary.get("peak_memory_kind") == "resident-rise" for result in results)
