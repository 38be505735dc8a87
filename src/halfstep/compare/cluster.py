"""Runs cells on a cluster through Ray: `halfstep compare CONFIG --on ray:head-node:6379`.

A node must have the comparison's directory at the same path (a shared file system) and halfstep
installed. Ray decides where a cell runs; on a node with GPUs a cell gets one of its own.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from typing import TYPE_CHECKING, Any

from halfstep.compare.results import Result
from halfstep.compare.runner import run_cell
from halfstep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.compare.grid import Cell
    from halfstep.compare.runner import Command
    from halfstep.compare.schedule import Started

_ENDING_SECONDS = 60.0


class RayCell:
    """A cell that was handed to Ray.

    Args:
        cell: The cell.
        ray: The module.
        reference: What Ray calls its result.
    """

    def __init__(self, cell: Cell, ray: Any, reference: Any) -> None:
        self.cell = cell
        self.reference = reference
        self._ray = ray

    def poll(self) -> Result | None:
        """Return what it came to, or None while it waits or runs."""
        done, _ = self._ray.wait([self.reference], timeout=0)
        if not done:
            return None
        try:
            result: Result = self._ray.get(self.reference)
        except self._ray.exceptions.RayError as error:
            said = str(error).strip().splitlines()
            return Result(
                self.cell, "crashed", f"ray: {said[-1] if said else type(error).__name__}"
            )
        return result


class RayCluster:
    """A place for cells; see `schedule.Place`.

    Args:
        address: Of the cluster's head ("host:6379", "auto"); None starts one on this machine.
        device: Kind of device that cells run on.
        command: Gives the program and arguments of a cell.
        time_limit: Seconds after which a cell is ended.
        options: Further arguments of `ray.init`.

    Raises:
        UserError: If Ray is not installed, the cluster cannot be reached, or has no such device.
    """

    def __init__(
        self,
        address: str | None,
        device: str,
        command: Command,
        *,
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
        count = int(ray.cluster_resources().get(wanted, 0))
        if count == 0:
            self.close()
            raise UserError(f"--on ray: the cluster has no {wanted}; write --device cpu or cuda")
        self._needs = {"num_gpus": 1} if device == "cuda" else {"num_cpus": 1}
        self.slots = (device,) * count

    def start(self, cell: Cell, slot: str) -> RayCell:
        """Hand a cell to Ray."""
        task = self._ray.remote(max_retries=0, **self._needs)(run_there)
        arguments = list(self._command(cell, slot))
        return RayCell(cell, self._ray, task.remote(cell, arguments, self._time_limit))

    def end(self, running: Sequence[Started]) -> None:
        """End cells that have not ended, in good order."""
        references = [each.reference for each in running if isinstance(each, RayCell)]
        for reference in references:
            self._ray.cancel(reference)
        if references:
            # A cell writes a checkpoint before it ends.
            self._ray.wait(references, num_returns=len(references), timeout=_ENDING_SECONDS)

    def close(self) -> None:
        """Leave the cluster; one that was started for this ends."""
        self._ray.shutdown()


def run_there(cell: Cell, command: list[str], time_limit: float | None) -> Result:
    """Run a cell on the node that Ray has chosen."""
    # Directories of a network appear on other nodes with a delay.
    for _ in range(50):
        if cell.config_file.exists():
            return run_cell(cell, command, time_limit=time_limit)
        time.sleep(0.1)
    return Result(
        cell,
        "crashed",
        f"{cell.directory} is not on {os.uname().nodename}; name a directory that all nodes share "
        "with --out",
    )


def parse_place(text: str) -> str | None:
    """Read `--on ray[:address]`; the address, or None for a cluster of this machine alone.

    Raises:
        UserError: If it is something else.
    """
    name, _, address = text.partition(":")
    if name != "ray":
        raise UserError(
            f"--on is {text!r}; allowed: ray for this machine, or ray:ADDRESS of a cluster's head, "
            "as in ray:10.0.0.1:6379"
        )
    return address or None
