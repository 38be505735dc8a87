"""Run one cell as a process of its own and say how it ended, whatever way that was.

The process is in the comparison's process group: what kills the group (a closed terminal, a job
scheduler) takes the cell with it. It is told whom it must not outlive, so that a SIGKILL to the
comparison alone ends it, too. Where several processes train, it is the one that launched them:
it hands on what it is asked, and they do not outlive it. What they say goes to log files in the
cell's directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from halfstep.compare.cells.directory import result_of
from halfstep.compare.cells.results import Result
from halfstep.compare.plan.grid import Cell
from halfstep.show.units import duration
from halfstep.train.processes.launch import LAUNCHER
from halfstep.train.store.diagnosis_file import in_a_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from halfstep.compare.cells.warm import Process, Server

Command = Callable[[Cell, str], Sequence[str]]
"""From a cell and a device to the program and arguments that run it into its `run_directory`."""

# A terminal's Ctrl-C reaches the cell as well, which then needs time to end and no second signal.
# It writes a checkpoint then, which takes a large model a while.
_ENDING: tuple[tuple[signal.Signals | None, float], ...] = (
    (None, 3.0),
    (signal.SIGINT, 30.0),
    (signal.SIGKILL, 10.0),
)
_POLL_SECONDS = 0.02
_FULL = 2**20
"""Free bytes below which a disk is called full."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_VERDICT = re.compile(r"^(error:|([A-Za-z_]\w*\.)*[A-Z]\w*(Error|Exception|Interrupt|Exit)\b)")


class RunningCell:
    """A cell whose process has been started.

    Args:
        cell: The cell, prepared by `directory.prepare`.
        command: The program and arguments.
        keep_open: File descriptors that the process inherits.
        time_limit: Seconds after which it is ended; None for no limit.
        environment: Variables of its own, besides those of this process.
        python: Forks it if it can.
    """

    def __init__(
        self,
        cell: Cell,
        command: Sequence[str],
        *,
        keep_open: Sequence[int] = (),
        time_limit: float | None = None,
        environment: Mapping[str, str] | None = None,
        python: Server | None = None,
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
        """Return what the cell came to, or None while it runs.

        The result of the summary that the run left; without one, "crashed" and the reason.
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
        time_limit: Seconds after which it is ended; None for no limit.
        environment: Variables of its own, besides those of this process.

    Raises:
        BaseException: What interrupts the wait (Ctrl-C), after the process has been ended.
    """
    running = RunningCell(cell, command, time_limit=time_limit, environment=environment)
    try:
        while (result := running.poll()) is None:
            time.sleep(_POLL_SECONDS)
    except BaseException:
        end([running.process])
        raise
    return result


def end(processes: Sequence[Process], patience: float | None = None) -> None:
    """End processes, in good order if they can and with force if they cannot.

    Args:
        processes: Which; all of them are asked at once.
        patience: Seconds that they are given before the first signal.
    """
    left = list(processes)
    try:
        for sent, seconds in _ENDING:
            if sent is not None:
                for process in left:
                    process.send_signal(sent)
            until = time.monotonic() + (
                patience if sent is None and patience is not None else seconds
            )
            for process in left:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(until - time.monotonic(), 0.0))
            left = [process for process in left if process.poll() is None]
    except KeyboardInterrupt:
        for process in left:
            process.kill()
            process.wait()


def reason(code: int, errors: Path) -> str:
    """Say in one line why a process ended with an exit code, from the file with its stderr."""
    if code < 0:
        return f"killed by {_signal_name(-code)}"
    text = _ESCAPES.sub("", errors.read_text(encoding="utf-8", errors="replace"))
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    # What a library prints at exit (leaked semaphores, warnings) may follow what went wrong.
    verdicts = [line for line in lines if _VERDICT.match(line)]
    said = (verdicts or lines or [f"the run printed no error; see {errors}"])[-1]
    if shutil.disk_usage(errors.parent).free < _FULL:
        # Then what it wanted to say may not have been written either.
        said = f"the disk of {errors.parent} is full; {said}"
    return f"exit code {code}: {said}" if code else f"no summary was written: {said}"


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    if number == signal.SIGKILL:
        return f"{name}; the system does this when memory runs out"
    return name
