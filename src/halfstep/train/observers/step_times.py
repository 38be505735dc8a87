"""Measures the time of each optimizer step, including data loading, on the device's own clock.

A GPU is not synchronized: events are recorded between its steps, and read many steps later.

`CoreWait` measures how long the threads of a run wait for a CPU core that other processes use. Such
a thread is ready to compute, so the run is slower than it would be alone. If several threads share
an operation (OpenMP), the run is much slower: threads that are done spin while they wait for the
others, and so keep cores from them.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from halfstep.disturbance import DISTURBED
from halfstep.kernels.accelerators import recorded_event
from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halfstep.engine import StepResult

    Times = Mapping[str, tuple[int, int]]
    """By thread id: nanoseconds of computing, and nanoseconds of waiting for a core."""

_WARM_UP = 3
"""Number of first steps of a process that do not count: they choose kernels and fill caches."""
_MOST_PENDING = 1000
_EVERY_S = 0.25
_ENOUGH_S = 5.0
"""Minimum seconds of computing and waiting, summed over threads, before a warning."""


class CoreWaitWarning(UserWarning):
    """The run is slow, because other processes use the cores."""


def thread_times() -> Times:
    """Return the times of all threads of this process; empty if the kernel does not report them.

    The source is Linux's `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst).
    """
    figures = {}
    for thread in Path("/proc/self/task").glob("*"):
        # The file of a thread that has just ended does not exist.
        with suppress(OSError, ValueError):
            computed, waited, _ = map(int, (thread / "schedstat").read_text().split())
            figures[thread.name] = (computed, waited)
    return figures


class CoreWait:
    """Sums the time that the threads of this process compute and wait for a core in training.

    Attributes:
        next_look: Time, in seconds of `clock`, before which `step_done` does nothing.
    """

    def __init__(
        self,
        device: torch.device,
        read: Callable[[], Times] = thread_times,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._spins = device.type == "cpu"
        self._read = read
        self._clock = clock
        self._computed = self._waited = 0.0
        self._before: Times = {}
        self.next_look = 0.0

    @property
    def share(self) -> float | None:
        """Share of the time, 0 to 1, that threads which were ready to compute waited for a core.

        None if the kernel does not report it, or before the first measurement.
        """
        total = self._computed + self._waited
        return self._waited / total if total else None

    def begin(self) -> None:
        """Start measuring again after a pause, which does not count."""
        self._before, self.next_look = self._read(), self._clock() + _EVERY_S

    def step_done(self, now: float) -> None:
        """Add the times since the last reading, if `now`, in seconds of `clock`, is late enough."""
        if now < self.next_look:
            return
        before = self._before
        self.begin()
        for thread, (computed, waited) in self._before.items():
            computed_before, waited_before = before.get(thread, (0, 0))
            self._computed += (computed - computed_before) / 1e9
            self._waited += (waited - waited_before) / 1e9
        if self._computed + self._waited >= _ENOUGH_S:
            self._warn_once()

    def _warn_once(self) -> None:
        """Warn, with a remedy, if spinning threads make the waiting worse and can be avoided."""
        passive = os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"
        if not self._spins or passive or torch.get_num_threads() == 1:
            return
        if self.share is not None and self.share >= DISTURBED:
            self._spins = False
            warnings.warn(
                f"{self.share:.0%} of the time, threads of this run waited for a core that other "
                "processes used. Spinning threads make this several times slower: write "
                "OMP_NUM_THREADS=1 or OMP_WAIT_POLICY=PASSIVE before the command, or run fewer "
                "programs at a time",
                CoreWaitWarning,
                stacklevel=2,
            )


class StepTimes(Observer):
    """Measures the time from the end of each step to the end of the next.

    The first step after a pause, which may start data workers, and the warm-up steps do not count.

    Attributes:
        cores: Measures how long threads waited for a core.
    """

    def __init__(
        self, device: torch.device, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.cores = CoreWait(device, clock=clock)
        self._device = device
        self._on_gpu = device.type != "cpu"
        self._clock = clock
        self._before: float | torch.Event | None = None
        self._pending: deque[tuple[torch.Event, torch.Event]] = deque()
        self._to_warm_up = _WARM_UP
        self._seconds: list[float] = []

    def after_pause(self) -> None:
        """Start again: the next step has no start time, so it does not count."""
        self._before = None
        self.cores.begin()

    def stepped(self, step: int, result: StepResult | None) -> None:
        """Record the time since the last step ended."""
        clock, before = self._clock(), self._before
        if clock >= self.cores.next_look:
            self.cores.step_done(clock)
        now = self._before = recorded_event(self._device, timed=True) if self._on_gpu else clock
        if self._to_warm_up:
            self._to_warm_up -= 1
        elif before is None:
            return
        elif isinstance(now, float) and isinstance(before, float):
            self._seconds.append(now - before)
        elif isinstance(before, torch.Event) and isinstance(now, torch.Event):
            self._pending.append((before, now))
            self._read(leave=_MOST_PENDING)

    def summary(self) -> dict[str, float | None]:
        """Return median and 95th percentile of the step times, and the share of core waiting."""
        return {
            "step_seconds_median": self.quantile(0.5),
            "step_seconds_p95": self.quantile(0.95),
            "core_wait_share": self.cores.share,
        }

    def quantile(self, share: float) -> float | None:
        """Return the quantile `share` (0 to 1) of the step times, in seconds.

        None if no step was counted. Waits for the device.
        """
        self._read(leave=0)
        return float(np.quantile(self._seconds, share)) if self._seconds else None

    def _read(self, *, leave: int) -> None:
        while len(self._pending) > leave:
            before, after = self._pending.popleft()
            after.synchronize()
            self._seconds.append(before.elapsed_time(after) / 1000)
