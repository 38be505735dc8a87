"""Which cell runs where and when: as many at a time as there are slots, one in each.

A slot is of this machine, or a place in a cluster. What starts a cell is a parameter, so
that this file knows neither processes nor clusters.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from halfstep.compare.cells.results import Result
from halfstep.compare.cells.runner import Command, RunningCell, end
from halfstep.compare.plan.slots import as_seen_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.compare.cells.warm import Server
    from halfstep.compare.plan.grid import Cell

_POLL_SECONDS = 0.02


class Started(Protocol):
    """A cell on its way."""

    def poll(self) -> Result | None:
        """Return what it came to, or None while it runs."""


class Place(Protocol):
    """Where cells run."""

    @property
    def slots(self) -> Sequence[str]:
        """What runs a cell at a time each; their number is how many run at once."""

    def start(self, cell: Cell, slot: str) -> Started:
        """Start a cell that is prepared."""

    def end(self, running: Sequence[Started]) -> None:
        """End cells that have not ended."""


class ThisMachine:
    """Runs cells as processes of this machine.

    Args:
        devices: Its slots; see `slots`.
        command: Gives the program and arguments of a cell.
        keep_open: File descriptors that the processes inherit.
        time_limit: Seconds after which a cell is ended.
        python: Forks cells that train on the CPU: CUDA needs a process that started by itself.
    """

    def __init__(
        self,
        devices: Sequence[str],
        command: Command,
        *,
        keep_open: Sequence[int] = (),
        time_limit: float | None = None,
        python: Server | None = None,
    ) -> None:
        self.slots = tuple(devices)
        self._command = command
        self._keep_open = keep_open
        self._time_limit = time_limit
        self._python = python

    def start(self, cell: Cell, slot: str) -> RunningCell:
        """Start a cell on the devices of a slot."""
        device, visible = as_seen_inside(slot)
        return RunningCell(
            cell,
            self._command(cell, device),
            keep_open=self._keep_open,
            time_limit=self._time_limit,
            environment={**self._threads(cell.processes), **visible},
            python=self._python if slot == "cpu" else None,
        )

    def end(self, running: Sequence[Started]) -> None:
        """End cells that have not ended."""
        end([each.process for each in running if isinstance(each, RunningCell)])

    def _threads(self, processes: int) -> dict[str, str]:
        """Share the cores out to all processes: those that fight over them are slow and noisy."""
        at_once = len(self.slots) * processes
        if at_once == 1 or "OMP_NUM_THREADS" in os.environ:
            return {}
        return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // at_once))}


def run_all(
    cells: Sequence[Cell],
    place: Place,
    *,
    starting: Callable[[Cell], None],
    ended: Callable[[Result], None],
) -> None:
    """Run cells until all have ended.

    Args:
        cells: Which, in the order in which they start.
        place: Where.
        starting: Is called right before a cell starts.
        ended: Is called with each result, in the order in which cells end.

    Raises:
        BaseException: What interrupts it (Ctrl-C), after the running cells have been ended.
    """
    waiting = deque(cells)
    running: dict[int, Started] = {}
    try:
        while waiting or running:
            for number, slot in enumerate(place.slots):
                if waiting and number not in running:
                    cell = waiting.popleft()
                    try:
                        starting(cell)
                        running[number] = place.start(cell, slot)
                    except OSError as error:
                        ended(Result(cell, "crashed", f"it could not be started: {error}"))
            for number, started in list(running.items()):
                if (result := started.poll()) is not None:
                    del running[number]
                    ended(result)
            time.sleep(_POLL_SECONDS)
    except BaseException:
        place.end(list(running.values()))
        raise
