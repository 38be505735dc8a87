"""How long a comparison still takes, from how long its cells took and how far the running one is.

Cells differ by their recipe (half precision can be ten times slower or twice as fast), so a cell is
expected to take as long as others of its recipe, and as the mean of all only where there are none.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Running:
    """The cell that runs now.

    Attributes:
        recipe: Its recipe.
        seconds: How long it has been running.
        done: Which share of its epochs it has behind it, 0 to 1.
    """

    recipe: str
    seconds: float
    done: float


def seconds_left(
    durations: Mapping[str, Sequence[float]], running: Running | None, waiting: Sequence[str]
) -> float | None:
    """Estimate the seconds until the last cell has ended.

    Args:
        durations: Seconds that the cells took which have ended, by recipe.
        running: The cell that runs now, if one does.
        waiting: Recipes of the cells that have not started.

    Returns:
        The estimate; None while nothing is known to estimate from.
    """
    known = {name: list(seconds) for name, seconds in durations.items() if seconds}
    left = 0.0
    if running is not None:
        if running.done > 0:
            total = running.seconds / running.done
            known.setdefault(running.recipe, []).append(total)
        elif known:
            total = _expected(known, running.recipe)
        else:
            return None
        left += max(total - running.seconds, 0.0)
    if waiting and not known:
        return None
    return left + sum(_expected(known, name) for name in waiting)


def epochs_done(run_directory: Path) -> int:
    """Count the epochs that a run has behind it: one validation each in its metrics."""
    try:
        lines = (run_directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(1 for line in lines if _is_validation(line))


def _is_validation(line: str) -> bool:
    try:
        return bool(json.loads(line).get("kind") == "val")
    except (ValueError, AttributeError):
        # The run is writing: its last line may be a part of one.
        return False


def _expected(known: Mapping[str, Sequence[float]], name: str) -> float:
    own = known.get(name) or [seconds for each in known.values() for seconds in each]
    return statistics.fmean(own)
