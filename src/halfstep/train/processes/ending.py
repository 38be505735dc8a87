"""Ends processes that train, and says in one line why a process ended."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Signals, and the seconds to wait after each. First no signal: Ctrl-C in a terminal also reaches
# the cell, which must not get a second one while it ends. Before it ends, a cell writes a
# checkpoint, which takes long for a large model.
_ENDING: tuple[tuple[signal.Signals | None, float], ...] = (
    (None, 3.0),
    (signal.SIGINT, 30.0),
    (signal.SIGKILL, 10.0),
)
_FULL = 2**20
"""Number of free bytes below which a disk counts as full."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_VERDICT = re.compile(r"^(error:|([A-Za-z_]\w*\.)*[A-Z]\w*(Error|Exception|Interrupt|Exit)\b)")


class Process(Protocol):
    """A process: a `subprocess.Popen`, or one that a comparison has forked."""

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal."""

    def kill(self) -> None:
        """End the process at once."""


def end(processes: Sequence[Process], patience: float | None = None) -> None:
    """End processes: with SIGINT, and then with SIGKILL if they still run.

    Args:
        processes: The processes; each signal is sent to all of them at once.
        patience: Seconds to wait before the first signal; default: 3.
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
    """Return the reason for an exit code in one line, from the file with the process's stderr."""
    if code < 0:
        return f"killed by {_signal_name(-code)}"
    text = _ESCAPES.sub("", errors.read_text(encoding="utf-8", errors="replace"))
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    # After the error, libraries may print lines at exit (leaked semaphores, warnings).
    verdicts = [line for line in lines if _VERDICT.match(line)]
    message = (verdicts or lines or [f"the run printed no error; see {errors}"])[-1]
    if shutil.disk_usage(errors.parent).free < _FULL:
        # The error message may be missing too, because the log could not be written.
        message = f"the disk of {errors.parent} is full; {message}"
    return f"exit code {code}: {message}" if code else f"no summary was written: {message}"


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    if number == signal.SIGKILL:
        return f"{name}; the system does this when memory runs out"
    return name
