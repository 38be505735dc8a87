"""The progress of a comparison: one line per cell, and on a terminal a live line below them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from halfstep.compare.cells.estimate import Running, seconds_left, share_done
from halfstep.show.units import duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import Console, RenderableType

    from halfstep.compare.cells.results import Result
    from halfstep.compare.plan.grid import Cell, Grid
    from halfstep.compare.plan.score import Score


class CellsDone:
    """Prints the progress of a comparison.

    On a terminal, a live line with a progress bar is below the printed lines while a cell runs.
    Otherwise there are only plain lines: one when a cell starts, and one when it has ended.

    Args:
        console: Where the lines are printed.
        grid: The cells of the comparison.
        slots: The number of cells that run at a time.
    """

    def __init__(self, console: Console, grid: Grid, slots: int = 1) -> None:
        self._console = console
        self._grid = grid
        self._slots = slots
        self._durations: dict[str, list[float]] = {name: [] for name in grid.recipes}
        self._waiting: list[Cell] = list(grid.cells)
        self._running: dict[int, float] = {}
        self._live = Live(
            console=console, get_renderable=self._moving_line, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._running.clear()
        self._live.stop()

    def kept(self, result: Result, versions: Sequence[str] = ()) -> None:
        """Report a cell that has a result from an earlier comparison, and does not run.

        Args:
            result: The result of the cell.
            versions: The versions of the result that differ from the installed versions.
        """
        self._waiting.remove(result.cell)
        self._note_duration(result, result.number("wall_seconds"))
        warning = f"; warning: made with {', '.join(versions)}" if versions else ""
        self._say(
            result.cell,
            f"{_outcome(result, self._grid.score)}, from an earlier comparison{warning}",
        )

    def changed(self, cell: Cell, changes: Sequence[str]) -> None:
        """Report a cell that runs again, because its result has other settings."""
        changed = "; ".join(changes)
        what = f"runs again, because settings changed ({changed}); --tag NAME keeps both results"
        self._say(cell, what)

    def started(self, cell: Cell) -> None:
        """Report that a cell starts."""
        self._waiting.remove(cell)
        self._running[self._number(cell)] = time.monotonic()
        if not self._console.is_terminal:
            left = self._left()
            self._say(cell, f"running{f', about {duration(left)} left in all' if left else ''}")

    def ended(self, result: Result) -> None:
        """Report that a cell has ended, or that it could not start."""
        now = time.monotonic()
        seconds = now - self._running.pop(self._number(result.cell), now)
        self._note_duration(result, seconds)
        self._say(result.cell, f"{_outcome(result, self._grid.score)}, {duration(seconds)}")

    def note(self, what: str) -> None:
        """Print a line that the user should read before the first cell runs."""
        self._console.print(Text(what), soft_wrap=True)

    def warn(self, what: str) -> None:
        """Print a warning about a problem that does not end the comparison."""
        self._console.print(Text(f"warning: {what}"), soft_wrap=True)

    def _note_duration(self, result: Result, seconds: float | None) -> None:
        if result.status == "finished" and seconds is not None:
            self._durations[result.cell.recipe].append(seconds)

    def _say(self, cell: Cell, what: str) -> None:
        line = f"[{self._number(cell) + 1}/{len(self._grid.cells)}] {cell.label}: {what}"
        self._console.print(Text(line), soft_wrap=True)

    def _number(self, cell: Cell) -> int:
        return self._grid.cells.index(cell)

    def _left(self) -> float | None:
        now = time.monotonic()
        running = [
            Running(cell.recipe, now - self._running[self._number(cell)], share_done(cell))
            for cell in self._cells_running()
        ]
        waiting = [cell.recipe for cell in self._waiting]
        left = seconds_left(self._durations, running, waiting, self._slots)
        # A resumed cell has many epochs done after a short time, so its estimate is near zero.
        return None if left is None or left < 1 else left

    def _cells_running(self) -> list[Cell]:
        return [self._grid.cells[number] for number in self._running]

    def _moving_line(self) -> RenderableType:
        cells = self._cells_running()
        if not cells:
            return Text()
        total = len(self._grid.cells)
        done = total - len(self._waiting) - len(cells)
        shares = sum(share_done(cell) for cell in cells)
        left = self._left()
        others = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
        line = Table.grid(padding=(0, 1))
        line.add_row(
            Spinner("dots"),
            Text(cells[0].label + others, style="bold"),
            ProgressBar(total=total, completed=done + shares, width=20),
            Text(f"{done} of {total} runs done"),
            Text(duration(time.monotonic() - min(self._running.values())), style="dim"),
            Text(f"about {duration(left)} left" if left is not None else "", style="dim"),
        )
        return line


def _outcome(result: Result, score: Score) -> str:
    best = result.number(score.best)
    unit = " %" if score.is_accuracy else f" {score.name}"
    text = result.status if best is None else f"{result.status}, best {score.value(best)}{unit}"
    return f"{text} ({result.reason})" if result.reason else text
