"""Runs cells as jobs of Slurm, by submitit: `halfstep compare CONFIG --on slurm:partition=gpu`.

The nodes must have the comparison's directory at the same path (a shared file system) and halfstep
installed. Each cell is a job on one node; Slurm decides where and when, so that all are handed over
at once. What submitit keeps of them lies in the comparison's directory, in `.slurm`.
"""

from __future__ import annotations

import importlib
import math
import time
from typing import TYPE_CHECKING, Any

from halfstep.compare.cells.cluster import run_there
from halfstep.compare.cells.results import Result
from halfstep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from halfstep.compare.cells.runner import Command
    from halfstep.compare.cells.schedule import Started
    from halfstep.compare.plan.grid import Cell

_AT_ONCE = 256
"""Jobs that wait or run at a time; the others follow."""
_DAY_MINUTES = 24 * 60
_MARGIN_MINUTES = 10
"""Of a job, beside the time limit of its cell, which ends in good order before."""
_POLL_SECONDS = 5.0
_ENDING_SECONDS = 60.0


class SlurmCell:
    """A cell that was handed to Slurm.

    Args:
        cell: The cell.
        job: What submitit calls it.
    """

    def __init__(self, cell: Cell, job: Any) -> None:
        self.cell = cell
        self.job = job
        self._next = 0.0

    def poll(self) -> Result | None:
        """Return what it came to, or None while it waits or runs."""
        # Each time asks the shared file system.
        if time.monotonic() < self._next or not self.job.done():
            self._next = max(self._next, time.monotonic() + _POLL_SECONDS)
            return None
        error = self.job.exception()
        if error is None:
            result: Result = self.job.result()
            return result
        said = [line for line in str(error).splitlines() if line.strip(" -")]
        reason = said[0].strip() if said else type(error).__name__
        return Result(self.cell, "crashed", f"slurm job {self.job.job_id}: {reason}")


class SlurmCluster:
    """A place for cells; see `schedule.Place`.

    Args:
        directory: The comparison's.
        device: Kind of device that cells run on.
        command: Gives the program and arguments of a cell.
        processes: How many processes train each cell.
        time_limit: Seconds after which a cell is ended; without, a job has a day.
        settings: Further settings of a job, as sbatch calls them.
        kind: "slurm"; submitit's "local" runs jobs on this machine.

    Raises:
        UserError: If submitit is not installed, this machine knows no Slurm, or a setting is none.
    """

    def __init__(
        self,
        directory: Path,
        device: str,
        command: Command,
        *,
        processes: int = 1,
        time_limit: float | None = None,
        settings: Mapping[str, str | int] | None = None,
        kind: str = "slurm",
    ) -> None:
        try:
            submitit: Any = importlib.import_module("submitit")
        except ImportError as error:
            raise UserError(
                "--on slurm needs submitit; write pip install 'halfstep[slurm]'"
            ) from error
        minutes = (
            _DAY_MINUTES if time_limit is None else math.ceil(time_limit / 60) + _MARGIN_MINUTES
        )
        needs = {"gpus_per_node": processes} if device == "cuda" else {"cpus_per_task": processes}
        own = {f"slurm_{key}": value for key, value in (settings or {}).items()}
        try:
            self._executor = submitit.AutoExecutor(directory / ".slurm", cluster=kind)
            self._executor.update_parameters(
                name="halfstep", nodes=1, tasks_per_node=1, timeout_min=minutes, **needs, **own
            )
        except (RuntimeError, NameError, AssertionError) as error:
            said = " ".join(str(error).split())[:300]
            raise UserError(f"--on slurm: {said}; see submitit's SlurmExecutor") from error
        self._command = command
        self._time_limit = time_limit
        # As with Ray: a process each, and no more threads than CPUs.
        self._environment = {"OMP_NUM_THREADS": "1"} if processes > 1 and device == "cpu" else {}
        self.slots = (device,) * _AT_ONCE

    def start(self, cell: Cell, slot: str) -> SlurmCell:
        """Hand a cell to Slurm.

        Raises:
            UserError: If Slurm refuses it, such as for a partition that does not exist.
        """
        arguments = list(self._command(cell, slot))
        try:
            job = self._executor.submit(
                run_there, cell, arguments, self._time_limit, self._environment
            )
        except RuntimeError as error:  # submitit's own errors, and those of sbatch, are such
            raise UserError(f"--on slurm: {' '.join(str(error).split())[-300:]}") from error
        return SlurmCell(cell, job)

    def end(self, running: Sequence[Started]) -> None:
        """End cells that have not ended, in good order."""
        jobs = [each.job for each in running if isinstance(each, SlurmCell)]
        for job in jobs:
            job.cancel(check=False)
        # A cell writes a checkpoint before it ends.
        until = time.monotonic() + _ENDING_SECONDS
        while time.monotonic() < until and not all(job.done(force_check=True) for job in jobs):
            time.sleep(1.0)

    def close(self) -> None:
        """Do nothing: Slurm keeps nothing open."""
