"""Estimates the remaining time of a comparison, from finished cells and the progress of others.

The time of a cell depends on its recipe: half precision can be ten times slower or twice as fast.
So the estimate for a cell is the mean time of the cells with the same recipe. If there are none, it
is the mean time of all cells.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.train.store import metrics_log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from halfstep.compare.plan.grid import Cell


@dataclass(frozen=True, slots=True)
class Running:
    """A cell that runs now.

    Attributes:
        recipe: Name of the recipe.
        seconds: Seconds since the start of the cell.
        done: The share of its epochs that are done, 0 to 1.
    """

    recipe: str
    seconds: float
    done: float


def seconds_left(
    durations: Mapping[str, Sequence[float]],
    running: Sequence[Running],
    waiting: Sequence[str],
    slots: int = 1,
) -> float | None:
    """Estimate the seconds until the last cell has ended.

    Args:
        durations: By recipe, the seconds of each cell that has ended.
        running: The cells that run now.
        waiting: The recipe of each cell that has not started.
        slots: The number of cells that run at a time.

    Returns:
        The estimate in seconds; None while no cell has ended or made progress.
    """
    known = {name: list(seconds) for name, seconds in durations.items() if seconds}
    for cell in running:
        if cell.done > 0:
            known.setdefault(cell.recipe, []).append(cell.seconds / cell.done)
    if not known:
        return None if running or waiting else 0.0
    rest = [max(_total(known, cell) - cell.seconds, 0.0) for cell in running]
    work = sum(rest) + sum(_expected(known, name) for name in waiting)
    # With any number of slots, the comparison takes at least as long as the slowest running cell.
    return max(work / slots, *rest, 0.0)


def share_done(cell: Cell) -> float:
    """Return the share of a cell's epochs that are done, 0 to 1."""
    epochs: int = cell.settings.get("epochs", 1)
    return min(epochs_done(cell.run_directory) / epochs, 1.0)


def epochs_done(run_directory: Path) -> int:
    """Return the last epoch with validation metrics in the run directory; 0 if there is none."""
    return max((line.get("epoch", 0) for line in metrics_log.read(run_directory, "val")), default=0)


def _total(known: Mapping[str, Sequence[float]], cell: Running) -> float:
    return cell.seconds / cell.done if cell.done > 0 else _expected(known, cell.recipe)


def _expected(known: Mapping[str, Sequence[float]], name: str) -> float:
    own = known.get(name) or [seconds for times in known.values() for seconds in times]
    return statistics.fmean(own)
