"""Run one cell as a process of its own and say how it ended, whatever way that was.

The process is in the comparison's process group: what kills the group (a closed terminal, a job
scheduler) takes the cell with it. What it says goes to log files in the cell's directory.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from halfstep.compare.directory import result_of
from halfstep.compare.grid import Cell
from halfstep.compare.results import Result

if TYPE_CHECKING:
    from pathlib import Path

Command = Callable[[Cell], Sequence[str]]

# A terminal's Ctrl-C reaches the cell as well, which then needs time to end and no second signal.
_ENDING: tuple[tuple[signal.Signals | None, float], ...] = (
    (None, 3.0),
    (signal.SIGINT, 10.0),
    (signal.SIGKILL, 10.0),
)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_VERDICT = re.compile(r"^(error:|([A-Za-z_]\w*\.)*[A-Z]\w*(Error|Exception|Interrupt|Exit)\b)")


def run_cell(cell: Cell, command: Command, *, keep_open: Sequence[int] = ()) -> Result:
    """Run a cell and wait for it.

    Args:
        cell: The cell, prepared by `directory.prepare`.
        command: Gives the program and arguments that run the cell into its `run_directory`.
        keep_open: File descriptors that the process inherits.

    Returns:
        The result of the summary that the run left; without one, "crashed" and the reason.

    Raises:
        BaseException: What interrupts the wait (Ctrl-C), after the process has been ended.
    """
    errors = cell.directory / "stderr.log"
    with (cell.directory / "stdout.log").open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(  # noqa: S603  # the command is the comparison's own
            list(command(cell)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=tuple(keep_open),
        )
        try:
            code = process.wait()
        except BaseException:
            _end(process)
            raise
    result = result_of(cell)
    if result.status == "pending":
        return Result(cell, "crashed", _reason(code, errors))
    return result


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        for sent, seconds in _ENDING:
            if sent is not None:
                process.send_signal(sent)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
            return
    except KeyboardInterrupt:
        process.kill()
        process.wait()


def _reason(code: int, errors: Path) -> str:
    if code < 0:
        return f"killed by {_signal_name(-code)}"
    text = _ESCAPES.sub("", errors.read_text(encoding="utf-8", errors="replace"))
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    # What a library prints at exit (leaked semaphores, warnings) may follow what went wrong.
    verdicts = [line for line in lines if _VERDICT.match(line)]
    said = (verdicts or lines or [f"it said nothing; see {errors}"])[-1]
    return f"exit code {code}: {said}" if code else f"no summary was written: {said}"


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    if number == signal.SIGKILL:
        return f"{name}, which is how a system that is out of memory ends a process"
    return name
