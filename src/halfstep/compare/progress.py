"""What a comparison says while it runs: a line a cell, and on a terminal a live line below."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from halfstep.compare.estimate import Running, epochs_done, seconds_left
from halfstep.compare.table import duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import Console, RenderableType

    from halfstep.compare.grid import Cell, Grid
    from halfstep.compare.results import Result


class Progress:
    """Tells a console how a comparison goes.

    On a terminal, a line below what is said moves while a cell runs. Elsewhere there are plain
    lines only: one when a cell starts and one when it has ended.

    Args:
        console: Where to say it.
        grid: What is compared.
        epochs: Epochs of a whole cell, which the estimate of the time left needs.
    """

    def __init__(self, console: Console, grid: Grid, epochs: int) -> None:
        self._console = console
        self._grid = grid
        self._epochs = epochs
        self._durations: dict[str, list[float]] = {name: [] for name in grid.recipes}
        self._waiting: list[Cell] = list(grid.cells)
        self._cell: Cell | None = None
        self._started = 0.0
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
        self._cell = None
        self._live.stop()

    def kept(self, result: Result) -> None:
        """A cell has a result from an earlier comparison and does not run."""
        self._waiting.remove(result.cell)
        self._note_duration(result, result.number("wall_seconds"))
        self._say(result.cell, f"{_outcome(result)}, from an earlier comparison")

    def changed(self, cell: Cell, changes: Sequence[str]) -> None:
        """A cell has a result of other settings and runs again."""
        self._say(cell, f"runs again, changed since: {'; '.join(changes)}")

    def started(self, cell: Cell) -> None:
        """A cell starts."""
        self._waiting.remove(cell)
        self._cell, self._started = cell, time.monotonic()
        if not self._console.is_terminal:
            left = self._left()
            self._say(
                cell, f"running{'' if left is None else f', about {duration(left)} left in all'}"
            )

    def ended(self, result: Result) -> None:
        """The cell that ran has ended."""
        seconds = time.monotonic() - self._started
        self._cell = None
        self._note_duration(result, seconds)
        self._say(result.cell, f"{_outcome(result)}, {duration(seconds)}")

    def _note_duration(self, result: Result, seconds: float | None) -> None:
        if result.status == "finished" and seconds is not None:
            self._durations[result.cell.recipe].append(seconds)

    def _say(self, cell: Cell, what: str) -> None:
        number = self._grid.cells.index(cell) + 1
        line = f"[{number}/{len(self._grid.cells)}] {cell.label}: {what}"
        self._console.print(Text(line), soft_wrap=True)

    def _left(self) -> float | None:
        running = None
        if self._cell is not None:
            share = epochs_done(self._cell.run_directory) / self._epochs
            running = Running(self._cell.recipe, time.monotonic() - self._started, min(share, 1.0))
        return seconds_left(self._durations, running, [cell.recipe for cell in self._waiting])

    def _moving_line(self) -> RenderableType:
        cell = self._cell
        if cell is None:
            return Text()
        total = len(self._grid.cells)
        done = total - len(self._waiting) - 1
        share = min(epochs_done(cell.run_directory) / self._epochs, 1.0)
        left = self._left()
        line = Table.grid(padding=(0, 1))
        line.add_row(
            Spinner("dots"),
            Text(cell.label, style="bold"),
            ProgressBar(total=total, completed=done + share, width=20),
            Text(f"{done} of {total} cells done"),
            Text(duration(time.monotonic() - self._started), style="dim"),
            Text(f"about {duration(left)} left" if left is not None else "", style="dim"),
        )
        return line


def _outcome(result: Result) -> str:
    best = result.number("best_accuracy")
    said = result.status if best is None else f"{result.status}, best {100 * best:.2f} %"
    return f"{said} ({result.reason})" if result.reason else said
