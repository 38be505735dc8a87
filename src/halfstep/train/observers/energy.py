"""Measures the energy of a GPU with the counter of its driver (NVML), if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.train.processes.processes import ALONE
from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.train.processes.processes import Processes
    from halfstep.train.run.training import Training

_JOULES_PER_MILLIJOULE = 1e-3


class Energy(Observer):
    """Measures the energy of this process's GPU since construction, including other programs'."""

    def __init__(self, device: torch.device, processes: Processes = ALONE) -> None:
        self._processes = processes
        self._counter = _counter(device) if device.type == "cuda" else None
        self._before = self._counter() if self._counter else 0.0
        self._is_whole = True

    def begin(self, training: Training) -> None:
        """Disable the report unless the counter covers the whole run and all its GPUs."""
        on_one_gpu = training.config.distributed.strategy != "dp"
        self._is_whole = training.resumed_at is None and on_one_gpu

    def summary(self) -> dict[str, float | None]:
        """Return the energy of all processes in joules; None if one cannot measure its own."""
        mine = self.joules() if self._is_whole else None
        known, total = self._processes.sums([float(mine is not None), mine or 0.0])
        return {"energy_joules": total if known == self._processes.size else None}

    def joules(self) -> float | None:
        """Return this GPU's energy so far in joules; None without a counter."""
        return self._counter() - self._before if self._counter else None


def _counter(device: torch.device) -> Callable[[], float] | None:
    """Return a function that reads a GPU's energy counter in joules; None without a counter."""
    try:
        import pynvml
    except ImportError:
        return None
    # torch numbers the visible GPUs and NVML all of them; the UUID is the same for both.
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"

    def joules() -> float:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) * _JOULES_PER_MILLIJOULE

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        joules()
    except pynvml.NVMLError:  # a MIG instance, or a GPU older than Volta, has no such counter
        return None
    return joules
