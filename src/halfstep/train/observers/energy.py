"""The energy that a GPU has used, by the counter that its driver keeps (NVML), if it does."""

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
    """Counts from when it is made what this process's GPU uses, for whatever it does."""

    def __init__(self, device: torch.device, processes: Processes = ALONE) -> None:
        self._processes = processes
        self._counter = _counter(device) if device.type == "cuda" else None
        self._before = self._counter() if self._counter else 0.0
        self._is_whole = True

    def begin(self, training: Training) -> None:
        """Report energy only if the whole run is counted, on all its GPUs."""
        on_one_gpu = training.config.distributed.strategy != "dp"
        self._is_whole = training.resumed_at is None and on_one_gpu

    def summary(self) -> dict[str, float | None]:
        """Return the energy of all processes; None if one does not know."""
        mine = self.joules() if self._is_whole else None
        known, total = self._processes.sums([float(mine is not None), mine or 0.0])
        return {"energy_joules": total if known == self._processes.size else None}

    def joules(self) -> float | None:
        """Return the energy so far, or None where nobody counts it."""
        return self._counter() - self._before if self._counter else None


def _counter(device: torch.device) -> Callable[[], float] | None:
    """Return what reads the energy counter of a GPU, in joules; None where there is none."""
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
    except pynvml.NVMLError:  # a part of a GPU, or one from before Volta, has no such counter
        return None
    return joules
