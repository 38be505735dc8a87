"""Measures the peak memory of training.

On a GPU this is the peak of the memory that torch allocated. For a CPU torch has no such counter,
so it is the growth of the process's resident memory from right before training to its peak.
`PeakMemory.kind` says which of the two was measured.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from halfstep.kernels.accelerators import counts_memory
from halfstep.train import kept
from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.train.run.training import Training

MemoryKind = Literal["device", "resident-rise"]

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc_pid_clear_refs(5): reset the peak resident set size
_SAMPLE_EVERY_S = 0.01


class PeakMemory(Observer):
    """Measures the peak memory from the beginning of training to its end."""

    def __init__(self, device: torch.device) -> None:
        self.kind: MemoryKind = "device" if counts_memory(device) else "resident-rise"
        self._device = device
        self._baseline = 0
        self._sampled = 0
        self._before_pause = 0
        self._reserved_before_pause = 0
        self._paused = False
        self._sampler: threading.Thread | None = None
        self._done = threading.Event()

    def begin(self, training: Training) -> None:
        if self.kind == "device":
            torch.accelerator.reset_peak_memory_stats(self._device)
            self._baseline = kept.bytes_of_others(training.setup.engine.bare_model)
            return
        _give_back_freed_memory()
        self._baseline = self._sampled = _resident()
        if not _reset_peak():
            self._sampler = threading.Thread(target=self._sample, daemon=True)
            self._sampler.start()

    def end(self, error: BaseException | None) -> None:
        self._done.set()
        if self._sampler:
            self._sampler.join()

    def summary(self) -> dict[str, Any]:
        return {
            "peak_memory_bytes": self.peak(),
            "peak_memory_kind": self.kind,
            "peak_memory_reserved_bytes": self.peak_reserved(),
        }

    def peak(self) -> int:
        """Return the peak memory so far, in bytes."""
        if self.kind == "device":
            allocated = torch.accelerator.max_memory_allocated(self._device)
            return max(self._before_pause, allocated - self._baseline)
        highest = max(self._sampled, _resident()) if self._sampler else _status("VmHWM")
        return max(self._before_pause, highest - self._baseline)

    def peak_reserved(self) -> int | None:
        """Return the peak GPU memory that torch reserved so far, in bytes; None on a CPU."""
        if self.kind != "device":
            return None
        return max(self._reserved_before_pause, torch.accelerator.max_memory_reserved(self._device))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude memory that the block allocates and frees, such as that of a probe."""
        self._before_pause = self.peak()
        self._reserved_before_pause = self.peak_reserved() or 0
        self._paused = True
        try:
            yield
        finally:
            _give_back_freed_memory()
            if self.kind == "device":
                torch.accelerator.empty_cache()
                torch.accelerator.reset_peak_memory_stats(self._device)
            elif self._sampler is None:
                _reset_peak()
            self._paused = False

    def _sample(self) -> None:
        while not self._done.wait(_SAMPLE_EVERY_S):
            if not self._paused:
                self._sampled = max(self._sampled, _resident())


def _give_back_freed_memory() -> None:
    """Return freed memory to the system, so that training does not reuse it unmeasured."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def _reset_peak() -> bool:
    """Reset the kernel's peak of resident memory; return False on a system without /proc."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return False
    return _STATUS.exists() and _status("VmHWM") > 0


def _resident() -> int:
    if _STATUS.exists():
        return _status("VmRSS")
    # The peak so far, because POSIX offers no current value; in bytes on macOS, in KiB elsewhere.
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024


def _status(field: str) -> int:
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0
