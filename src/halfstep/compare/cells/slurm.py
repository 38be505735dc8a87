"""Runs cells as Slurm jobs with submitit: `halfstep compare CONFIG --on slurm:partition=gpu`.

Each node needs halfstep, and the comparison's directory at the same path (a shared file system).
Each cell is a job on one node. All jobs are submitted at once, and Slurm decides where and when
they run. The files of submitit are in `.slurm` in the comparison's directory.
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
"""Maximum number of submitted jobs; the other cells are submitted as jobs end."""
_DAY_MINUTES = 24 * 60
_MARGIN_MINUTES = 10
"""Extra minutes of a job beyond the time limit of its cell, so that the cell ends first."""
_POLL_SECONDS = 5.0
_ENDING_SECONDS = 60.0


class SlurmCell:
    """A cell that was submitted to Slurm.

    Args:
        cell: The cell.
        job: The job of submitit.
    """

    def __init__(self, cell: Cell, job: Any) -> None:
        self.cell = cell
        self.job = job
        self._next = 0.0

    def poll(self) -> Result | None:
        """Return the result of the cell, or None while it waits or runs."""
        # Each check reads the shared file system, so there is a pause between two checks.
        if time.monotonic() < self._next or not self.job.done():
            self._next = max(self._next, time.monotonic() + _POLL_SECONDS)
            return None
        error = self.job.exception()
        if error is None:
            result: Result = self.job.result()
            return result
        lines = [line for line in str(error).splitlines() if line.strip(" -")]
        reason = lines[0].strip() if lines else type(error).__name__
        return Result(self.cell, "crashed", f"slurm job {self.job.job_id}: {reason}")


class SlurmCluster:
    """Runs cells as Slurm jobs; see `schedule.Place`.

    Args:
        directory: The comparison's directory.
        device: Kind of device of the cells.
        command: Returns the program and arguments that run a cell.
        processes: The number of processes that train each cell.
        time_limit: Seconds after which a cell is stopped; if None, a job gets one day.
        settings: Further settings of a job, with their names in sbatch.
        kind: "slurm", or "local" for submitit's executor that runs jobs on this machine.

    Raises:
        UserError: If submitit is not installed, if this machine has no Slurm, or if a setting does
            not exist.
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
            message = " ".join(str(error).split())[:300]
            raise UserError(f"--on slurm: {message}; see submitit's SlurmExecutor") from error
        self._command = command
        self._time_limit = time_limit
        # As with Ray: each process gets one CPU, and must not start more threads than that.
        self._environment = {"OMP_NUM_THREADS": "1"} if processes > 1 and device == "cpu" else {}
        self.slots = (device,) * _AT_ONCE

    def start(self, cell: Cell, slot: str) -> SlurmCell:
        """Submit a cell to Slurm.

        Raises:
            UserError: If Slurm refuses the job, for example because a partition does not exist.
        """
        arguments = list(self._command(cell, slot))
        try:
            job = self._executor.submit(
                run_there, cell, arguments, self._time_limit, self._environment
            )
        except RuntimeError as error:  # also the base class of submitit's errors
            raise UserError(f"--on slurm: {' '.join(str(error).split())[-300:]}") from error
        return SlurmCell(cell, job)

    def end(self, running: Sequence[Started]) -> None:
        """Cancel the running cells, and wait until they have written their checkpoints."""
        jobs = [cell.job for cell in running if isinstance(cell, SlurmCell)]
        for job in jobs:
            job.cancel(check=False)
        until = time.monotonic() + _ENDING_SECONDS
        while time.monotonic() < until and not all(job.done(force_check=True) for job in jobs):
            time.sleep(1.0)

    def close(self) -> None:
        """Do nothing, because there is no connection to Slurm to close."""
