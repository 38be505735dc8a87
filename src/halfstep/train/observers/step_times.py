"""How long each optimizer step takes, data included, on the device's own clock.

A GPU is not waited for: events are put between its steps, and read when it has long passed them.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import torch

from halfstep.train.observers.core_wait import CoreWait
from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.engine import StepResult

_WARM_UP = 3
"""First steps of a process that choose kernels and fill caches."""
_MOST_PENDING = 1000


class StepTimes(Observer):
    """Takes the time from the end of each step to the end of the next.

    The first step after a pause, which may start data workers, is not counted, nor is warm-up.

    Attributes:
        cores: How long the steps waited for a core.
    """

    def __init__(
        self, device: torch.device, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.cores = CoreWait(device)
        self._device = device
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
        self.cores.step_done()
        now = self._now()
        if self._to_warm_up:
            self._to_warm_up -= 1
        elif isinstance(self._before, float) and isinstance(now, float):
            self._seconds.append(now - self._before)
        elif isinstance(self._before, torch.cuda.Event) and isinstance(now, torch.cuda.Event):
            self._pending.append((self._before, now))
            self._read(leave=_MOST_PENDING)
        self._before = now

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

    def _now(self) -> float | torch.cuda.Event:
        if self._device.type != "cuda":
            return self._clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _read(self, *, leave: int) -> None:
        while len(self._pending) > leave:
            before, after = self._pending.popleft()
            after.synchronize()
            self._seconds.append(before.elapsed_time(after) / 1000)
