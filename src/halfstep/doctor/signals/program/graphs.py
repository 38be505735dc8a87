"""Counts the CUDA graphs that a program captures, and lets doctor rest meanwhile.

While a CUDA graph is captured, a read of a value is an error, and whatever doctor computed would
become a part of the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.signals.signal import Hook, Signal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from halfstep.doctor.signals.watched import Watched


class Graphs(Signal):
    """Counts captured graphs.

    Attributes:
        begun: Number of CUDA graphs that the program has begun to capture.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self.begun = 0
        self._resting: list[AbstractContextManager[Any]] = []

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the two ends of a capture."""
        yield Hook(torch.cuda.CUDAGraph, "capture_begin", self.watched.here(self._begins))
        yield Hook(torch.cuda.CUDAGraph, "capture_end", self._ending)

    def _begins(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.begun += 1
        self._resting.append(self.watched.guard.own())
        self._resting[-1].__enter__()
        return original(*args, **kwargs)

    def _ending(self, original: Any) -> Any:
        def capture_end(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                if self._resting:
                    self._resting.pop().__exit__(None, None, None)

        return capture_end
