"""How long a comparison still takes, from how long its cells took and how far the running one is.

Cells differ by their recipe (half precision can be ten times slower or twice as fast), so a cell is
expected to take as long as others of its recipe, and as the mean of all only where there are none.
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
        recipe: Its recipe.
        seconds: How long it has been running.
        done: Which share of its epochs it has behind it, 0 to 1.
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
        durations: Seconds that the cells took which have ended, by recipe.
        running: The cells that run now.
        waiting: Recipes of the cells that have not started.
        slots: How many cells run at a time.

    Returns:
        The estimate; None while nothing is known to estimate from.
    """
    known = {name: list(seconds) for name, seconds in durations.items() if seconds}
    for cell in running:
        if cell.done > 0:
            known.setdefault(cell.recipe, []).append(cell.seconds / cell.done)
    if not known:
        return None if running or waiting else 0.0
    rest = [max(_total(known, cell) - cell.seconds, 0.0) for cell in running]
    work = sum(rest) + sum(_expected(known, name) for name in waiting)
    # However many slots there are, the longest cell that runs must come to its end.
    return max(work / slots, *rest, 0.0)


def share_done(cell: Cell) -> float:
    """Return which share of its epochs the run of a cell has behind it, 0 to 1."""
    epochs: int = cell.settings.get("epochs", 1)
    return min(epochs_done(cell.run_directory) / epochs, 1.0)


def epochs_done(run_directory: Path) -> int:
    """Return the last epoch that a run has validated, going by its metrics; 0 without any."""
    return max((line.get("epoch", 0) for line in metrics_log.read(run_directory, "val")), default=0)


def _total(known: Mapping[str, Sequence[float]], cell: Running) -> float:
    return cell.seconds / cell.done if cell.done > 0 else _expected(known, cell.recipe)


def _expected(known: Mapping[str, Sequence[float]], name: str) -> float:
    own = known.get(name) or [seconds for each in known.values() for seconds in each]
    return statistics.fmean(own)
