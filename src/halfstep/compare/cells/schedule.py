"""Decides when and where each cell runs: one cell at a time in each slot.

A slot is on this machine or in a cluster. A `Place` has the slots and starts the cells, so
`run_all` is the same for all of them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from halfstep.compare.cells.results import Result
from halfstep.compare.cells.runner import Command, RunningCell
from halfstep.compare.cells.worker import Worker
from halfstep.compare.plan.slots import as_seen_inside
from halfstep.train.environment import processors
from halfstep.train.processes.ending import end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.compare.cells.warm import Server
    from halfstep.compare.plan.grid import Cell

_POLL_SECONDS = 0.02
_THREADS = "OMP_NUM_THREADS"


class Started(Protocol):
    """A cell that has been started."""

    def poll(self) -> Result | None:
        """Return the result of the cell, or None while it runs."""


class Place(Protocol):
    """Where cells run."""

    @property
    def slots(self) -> Sequence[str]:
        """The slots; each runs one cell at a time."""

    def start(self, cell: Cell, slot: str) -> Started:
        """Start a cell whose directory is prepared."""

    def end(self, running: Sequence[Started]) -> None:
        """End the cells that still run."""

    def close(self) -> None:
        """End everything that the cells ran in; none of them runs any more."""


class ThisMachine:
    """Runs cells as processes of this machine.

    Args:
        devices: The slots; see `slots`.
        command: Returns the program and arguments that run a cell.
        keep_open: File descriptors that the processes inherit.
        time_limit: Seconds after which a cell is stopped; None for no limit.
        python: The server that forks the processes of cells on the CPU. Cells on CUDA, and those
            whose model is compiled, run one after the other in a process of their slot.
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
        self._workers: dict[str, Worker] = {}

    def start(self, cell: Cell, slot: str) -> RunningCell:
        """Start a cell on the devices of a slot."""
        device, visible = as_seen_inside(slot)
        return RunningCell(
            cell,
            self._command(cell, device),
            keep_open=self._keep_open,
            time_limit=self._time_limit,
            environment={**self._threads(cell), **visible},
            python=self._starter(cell, slot),
        )

    def end(self, running: Sequence[Started]) -> None:
        """End the processes of the cells that still run."""
        end([cell.process for cell in running if isinstance(cell, RunningCell)])

    def close(self) -> None:
        """End the processes in which cells ran one after the other."""
        for worker in self._workers.values():
            worker.close()

    def _starter(self, cell: Cell, slot: str) -> Server | Worker | None:
        """Return what starts a cell faster than a new process; None for a new process."""
        compiles = cell.settings.get("model", {}).get("compile", False)
        alone = cell.processes == 1 and self.slots.count(slot) == 1
        if slot == "cpu" and not (alone and compiles):
            return self._python
        return self._workers.setdefault(slot, Worker()) if alone else None

    def _threads(self, cell: Cell) -> dict[str, str]:
        """Return variables that divide the cores among all processes; otherwise times are noisy.

        The variable takes precedence over the threads of the config, so it has at most these.
        """
        at_once = len(self.slots) * cell.processes
        if at_once == 1 or _THREADS in os.environ:
            return {}
        share = max(1, processors() // at_once)
        return {_THREADS: str(min(share, cell.settings.get("threads") or share))}


def run_all(
    cells: Sequence[Cell],
    place: Place,
    *,
    starting: Callable[[Cell], None],
    ended: Callable[[Result], None],
) -> None:
    """Run cells until all have ended.

    Args:
        cells: The cells, in the order in which they start.
        place: Where the cells run.
        starting: Called immediately before a cell starts.
        ended: Called with each result, in the order in which the cells end.

    Raises:
        BaseException: The exception that interrupts the loop (such as Ctrl-C), after the running
            cells have ended.
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
