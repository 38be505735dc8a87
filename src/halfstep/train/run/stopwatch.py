"""The time that a run has spent in training, over all processes that worked on it."""

from __future__ import annotations

import time


class Stopwatch:
    """Counts while it runs."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """The time so far."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._seconds + running

    @property
    def running(self) -> bool:
        """Whether it counts now."""
        return self._since is not None

    def add(self, seconds: float) -> None:
        """Add what was counted before, in another process."""
        self._seconds += seconds

    def start(self) -> None:
        """Count from now on."""
        self.stop()
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Count no more."""
        self._seconds, self._since = self.seconds, None
