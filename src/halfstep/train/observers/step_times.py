"""How long each optimizer step takes, data included, on the device's own clock.

A GPU is not waited for: events are put between its steps, and read when it has long passed them.

`CoreWait` says how long the threads of a run wait for a core that other processes have. A thread
that waits is ready to compute, so that the run is slower than it would be alone. Where several
threads share an operation (OpenMP) it is much slower: those that are done wait for the others by
spinning, which keeps cores from them.
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

from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halfstep.engine import StepResult

    Times = Mapping[str, tuple[int, int]]
    """By thread: nanoseconds that it computed, and that it was ready to and waited for a core."""

_WARM_UP = 3
"""First steps of a process that choose kernels and fill caches."""
_MOST_PENDING = 1000
DISTURBED = 0.1
"""From which share of waiting on the times of a run say little about the run."""
_EVERY_S = 0.25
_ENOUGH_S = 5.0
"""Of computing and waiting, before there is a warning."""


class CoreWaitWarning(UserWarning):
    """The run is slow because others have the cores."""


def thread_times() -> Times:
    """Return the times of all threads of this process; none where the kernel does not say.

    The source is Linux's `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst).
    """
    found = {}
    for thread in Path("/proc/self/task").glob("*"):
        # One that ends meanwhile is gone.
        with suppress(OSError, ValueError):
            computed, waited, _ = map(int, (thread / "schedstat").read_text().split())
            found[thread.name] = (computed, waited)
    return found


class CoreWait:
    """Adds up what the threads of this process compute and wait in training.

    Attributes:
        next_look: By its clock, the time before which `step_done` does nothing.
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
        """The share of the time, 0 to 1, in which threads that could compute had no core.

        None where the kernel does not say, or there was no time to tell.
        """
        total = self._computed + self._waited
        return self._waited / total if total else None

    def begin(self) -> None:
        """Start anew after a pause, which does not count."""
        self._before, self.next_look = self._read(), self._clock() + _EVERY_S

    def step_done(self, now: float) -> None:
        """Count the time since the last look, if that is some time ago, by the same clock."""
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
        """Say what to write where threads that spin make it worse, and that can be helped."""
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
    """Takes the time from the end of each step to the end of the next.

    The first step after a pause, which may start data workers, is not counted, nor is warm-up.

    Attributes:
        cores: How long the steps waited for a core.
    """

    def __init__(
        self, device: torch.device, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.cores = CoreWait(device, clock=clock)
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._clock = clock
        self._before: float | torch.cuda.Event | None = None
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._to_warm_up = _WARM_UP
        self._seconds: list[float] = []

    def after_pause(self) -> None:
        """Start anew: the next step has nothing to be measured from."""
        self._before = None
        self.cores.begin()

    def stepped(self, step: int, result: StepResult | None) -> None:
        """Count the time since the last step ended."""
        clock, before = self._clock(), self._before
        if clock >= self.cores.next_look:
            self.cores.step_done(clock)
        now = self._before = self._event() if self._on_gpu else clock
        if self._to_warm_up:
            self._to_warm_up -= 1
        elif before is None:
            return
        elif isinstance(now, float) and isinstance(before, float):
            self._seconds.append(now - before)
        elif isinstance(before, torch.cuda.Event) and isinstance(now, torch.cuda.Event):
            self._pending.append((before, now))
            self._read(leave=_MOST_PENDING)

    def summary(self) -> dict[str, float | None]:
        """Return the median, what 95 of 100 steps stayed within, and the wait for cores."""
        return {
            "step_seconds_median": self.quantile(0.5),
            "step_seconds_p95": self.quantile(0.95),
            "core_wait_share": self.cores.share,
        }

    def quantile(self, share: float) -> float | None:
        """Return the seconds that this share of the steps (0 to 1) stayed within.

        None if no step was counted. Waits for the device.
        """
        self._read(leave=0)
        return float(np.quantile(self._seconds, share)) if self._seconds else None

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _read(self, *, leave: int) -> None:
        while len(self._pending) > leave:
            before, after = self._pending.popleft()
            after.synchronize()
            self._seconds.append(before.elapsed_time(after) / 1000)
