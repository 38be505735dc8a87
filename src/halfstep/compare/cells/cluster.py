"""Runs cells on a cluster through Ray: `halfstep compare CONFIG --on ray:head-node:6379`.

Each node needs halfstep, and the comparison's directory at the same path (a shared file system).
Ray chooses the node of a cell. All processes of a cell run on one node, with one GPU each if they
train on GPUs.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from typing import TYPE_CHECKING, Any

from halfstep.compare.cells.results import Result
from halfstep.compare.cells.runner import run_cell
from halfstep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.compare.cells.runner import Command
    from halfstep.compare.cells.schedule import Started
    from halfstep.compare.plan.grid import Cell

_ENDING_SECONDS = 60.0


class RayCell:
    """A cell that was submitted to Ray.

    Args:
        cell: The cell.
        ray: The module `ray`.
        reference: Ray's object reference of the cell's result.
    """

    def __init__(self, cell: Cell, ray: Any, reference: Any) -> None:
        self.cell = cell
        self.reference = reference
        self._ray = ray

    def poll(self) -> Result | None:
        """Return the result of the cell, or None while it waits or runs."""
        done, _ = self._ray.wait([self.reference], timeout=0)
        if not done:
            return None
        try:
            result: Result = self._ray.get(self.reference)
        except self._ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines()
            return Result(
                self.cell, "crashed", f"ray: {lines[-1] if lines else type(error).__name__}"
            )
        return result


class RayCluster:
    """Runs cells on a Ray cluster; see `schedule.Place`.

    Args:
        address: Address of the cluster's head node ("host:6379", or "auto"); None starts a cluster
            on this machine.
        device: Kind of device of the cells.
        command: Returns the program and arguments that run a cell.
        processes: The number of processes that train each cell.
        time_limit: Seconds after which a cell is stopped; None for no limit.
        options: Further arguments of `ray.init`.

    Raises:
        UserError: If Ray is not installed, if the cluster cannot be reached, or if no node has
            enough devices of this kind.
    """

    def __init__(
        self,
        address: str | None,
        device: str,
        command: Command,
        *,
        processes: int = 1,
        time_limit: float | None = None,
        **options: Any,
    ) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise UserError("--on ray needs ray; write pip install 'halfstep[ray]'") from error
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            ray.init(address=address, **quiet, **options)
        except (ConnectionError, ValueError) as error:
            raise UserError(f"--on ray: no cluster at {address!r}: {error}") from error
        self._ray = ray
        self._command = command
        self._time_limit = time_limit
        wanted = "GPU" if device == "cuda" else "CPU"
        # All processes of a cell run on one node, so the node with the most devices is the limit.
        counts = [int(node["Resources"].get(wanted, 0)) for node in ray.nodes() if node["Alive"]]
        most = max(counts, default=0)
        if most < processes:
            self.close()
            raise UserError(
                f"--on ray: no node of the cluster has {processes} {wanted}s for --processes "
                f"{processes}; write --processes {most}, or fewer"
                if most
                else f"--on ray: the cluster has no {wanted}; write --device cpu or cuda"
            )
        self._needs = {"num_gpus" if device == "cuda" else "num_cpus": processes}
        # Ray sets the number of threads to the number of the task's CPUs. Each process of the cell
        # would inherit that number.
        self._environment = {"OMP_NUM_THREADS": "1"} if processes > 1 and device == "cpu" else {}
        self.slots = (device,) * sum(count // processes for count in counts)

    def start(self, cell: Cell, slot: str) -> RayCell:
        """Submit a cell to Ray."""
        task = self._ray.remote(max_retries=0, **self._needs)(run_there)
        arguments = list(self._command(cell, slot))
        reference = task.remote(cell, arguments, self._time_limit, self._environment)
        return RayCell(cell, self._ray, reference)

    def end(self, running: Sequence[Started]) -> None:
        """Cancel the running cells, and wait until they have written their checkpoints."""
        references = [cell.reference for cell in running if isinstance(cell, RayCell)]
        for reference in references:
            self._ray.cancel(reference)
        if references:
            self._ray.wait(references, num_returns=len(references), timeout=_ENDING_SECONDS)

    def close(self) -> None:
        """Disconnect from the cluster; a cluster that was started for this comparison ends."""
        self._ray.shutdown()


def run_there(
    cell: Cell,
    command: list[str],
    time_limit: float | None,
    environment: dict[str, str] | None = None,
) -> Result:
    """Run a cell on the node that the cluster has chosen."""
    # On a network file system, new files become visible on other nodes only after a delay.
    for _ in range(50):
        if cell.config_file.exists():
            return run_cell(cell, command, time_limit=time_limit, environment=environment)
        time.sleep(0.1)
    return Result(
        cell,
        "crashed",
        f"{cell.directory} is not on {os.uname().nodename}; name a directory that all nodes share "
        "with --out",
    )


def parse_place(text: str) -> tuple[str, str | None, dict[str, str | int]]:
    """Parse `--on ray[:ADDRESS]` or `--on slurm[:KEY=VALUE,...]`.

    Returns:
        The name "ray" or "slurm"; the address of the Ray cluster, or None for a cluster on this
        machine; the settings of a Slurm job.

    Raises:
        UserError: If the text has another form.
    """
    name, _, rest = text.partition(":")
    pairs = [pair.partition("=") for pair in rest.split(",") if pair]
    if name == "ray":
        return name, rest or None, {}
    if name == "slurm" and all(key and value for key, _, value in pairs):
        given = {key: int(value) if value.isdigit() else value for key, _, value in pairs}
        return name, None, given
    raise UserError(
        f"--on is {text!r}; allowed: ray for this machine, ray:ADDRESS of a cluster's head, as in "
        "ray:10.0.0.1:6379, or slurm:KEY=VALUE,... with settings of sbatch, as in "
        "slurm:partition=gpu,account=vision"
    )
