"""Runs one cell in a separate process, and reports how the process ended.

The process belongs to the comparison's process group, so a signal to the group (from a closed
terminal or a job scheduler) also ends the cell. The process also knows the id of the comparison's
process, and ends with it, even if the comparison alone gets a SIGKILL. If several processes train a
cell, this process is their launcher: it forwards signals to them, and they end with it. Their
output goes to log files in the cell's directory.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from halfstep.compare.cells.directory import result_of
from halfstep.compare.cells.results import Result
from halfstep.compare.plan.grid import Cell
from halfstep.show.units import duration
from halfstep.train.processes.ending import end, reason
from halfstep.train.processes.launch import LAUNCHER
from halfstep.train.store.diagnosis_file import in_a_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfstep.compare.cells.warm import Process, Server
    from halfstep.compare.cells.worker import Worker

Command = Callable[[Cell, str], Sequence[str]]
"""Returns the program and arguments that run a cell on a device and write its `run_directory`."""

_POLL_SECONDS = 0.02


class RunningCell:
    """A cell whose process has been started.

    Args:
        cell: The cell, prepared by `directory.prepare`.
        command: The program and arguments.
        keep_open: File descriptors that the process inherits.
        time_limit: Seconds after which the process is stopped; None for no limit.
        environment: Environment variables in addition to those of this process.
        python: The server that forks the process, or the worker in whose process the cell runs, if
            it can; otherwise a new process is started.
    """

    def __init__(
        self,
        cell: Cell,
        command: Sequence[str],
        *,
        keep_open: Sequence[int] = (),
        time_limit: float | None = None,
        environment: Mapping[str, str] | None = None,
        python: Server | Worker | None = None,
    ) -> None:
        self.cell = cell
        self._errors = cell.directory / "stderr.log"
        self._limit = time_limit
        self._started = time.monotonic()
        variables = {LAUNCHER: str(os.getpid()), **(environment or {})}
        with (cell.directory / "stdout.log").open("wb") as out, self._errors.open("wb") as errors:
            outputs = (out.fileno(), errors.fileno())
            forked = python and python.start(
                command, outputs=outputs, environment=variables, keep_open=keep_open
            )
            self.process: Process = forked or subprocess.Popen(  # noqa: S603  # our own command
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                pass_fds=tuple(keep_open),
                env={**os.environ, **variables},
            )

    def poll(self) -> Result | None:
        """Return the result of the cell, or None while it runs.

        The result is made from the run's summary. If there is no summary, the status is "crashed",
        with the reason.
        """
        code = self.process.poll()
        late = self._limit is not None and time.monotonic() - self._started > self._limit
        if code is None and late:
            end([self.process], patience=0.0)
        elif code is None:
            return None
        result = result_of(self.cell)
        if result.status != "pending":
            return result
        if code is None:
            assert self._limit is not None
            stopped = f"stopped by --time-limit after {duration(self._limit)}"
            return Result(self.cell, "crashed", stopped)
        cause = in_a_line(self.cell.run_directory)
        return Result(self.cell, "crashed", reason(code, self._errors), cause=cause)


def run_cell(
    cell: Cell,
    command: Sequence[str],
    *,
    time_limit: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> Result:
    """Run a cell and wait for it.

    Args:
        cell: The cell, prepared by `directory.prepare`.
        command: The program and arguments.
        time_limit: Seconds after which the process is stopped; None for no limit.
        environment: Environment variables in addition to those of this process.

    Raises:
        BaseException: The exception that interrupts the wait (such as Ctrl-C), after the process
            has ended.
    """
    running = RunningCell(cell, command, time_limit=time_limit, environment=environment)
    try:
        while (result := running.poll()) is None:
            time.sleep(_POLL_SECONDS)
    except BaseException:
        end([running.process])
        raise
    return result
